"""Recursive descent parser with the precedence of Spark's grammar.

Precedence from low to high: or, and, not, predicates (between, in, like, is), comparisons, |, ^, &, shifts, + - ||,
* / % div, unary - + ~, suffixes of an operand (`.field`, `[index]`, `::type`).
"""

from statebed.expressions import types
from statebed.expressions.language.operands import Operands
from statebed.expressions.language.tokens import TokenKind
from statebed.expressions.language.tree import Call, Literal, Node, Parsed
from statebed.expressions.mistakes import TextSpan

_COMPARISONS = {"=": "=", "==": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">=", "<=>": "<=>"}
_BIT_OPERATORS = (("|",), ("^",), ("&",), ("<<", ">>", ">>>"))
_DEEPEST = 50
"""Maximum depth of nested parentheses; every level takes several frames of Python's stack."""


def parse(place: TextSpan) -> Parsed:
    """Parse a whole text; return its tree and the name that it gives to the result."""
    return _Parser(place).whole()


def balanced(function: str, operands: list[Node]) -> Node:
    """Build a shallow tree from a long chain of operators without changing the order of evaluation."""
    if len(operands) == 1:
        return operands[0]
    middle = len(operands) // 2
    halves = balanced(function, operands[:middle]), balanced(function, operands[middle:])
    return Call(operands[0].start, operands[-1].end, function, halves)


class _Parser(Operands):
    def __init__(self, place: TextSpan) -> None:
        super().__init__(place)
        self.depth = 0

    # ---- the whole -------------------------------------------------------------------------------------------

    def whole(self) -> Parsed:
        root = self.expression()
        alias, names = None, []
        if self.skip_word("as"):
            if self.skip_sign("("):
                names.append(self.label("a name"))
                while self.skip_sign(","):
                    names.append(self.label("a name"))
                self.expect(")")
            else:
                alias = self.label("a name")
        if self.next.kind is not TokenKind.END:
            raise self.unexpected("an operator or the end")
        return Parsed(root, alias, tuple(names))

    def expression(self) -> Node:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise self.place.at(self.next.start, self.next.end).mistake("parentheses are nested too deeply")
        alternatives = [self.conjunction()]
        while self.skip_word("or"):
            alternatives.append(self.conjunction())
        self.depth -= 1
        return balanced("or", alternatives)

    def conjunction(self) -> Node:
        conditions = [self.negation()]
        while self.skip_word("and"):
            conditions.append(self.negation())
        return balanced("and", conditions)

    def negation(self) -> Node:
        token, count = self.next, 0
        while self.skip_word("not") or self.skip_sign("!"):
            count += 1
        operand = self.predicate()
        for _ in range(count):
            operand = Call(token.start, self.last_end(), "not", (operand,))
        return operand

    # ---- predicates ------------------------------------------------------------------------------------------

    def predicate(self) -> Node:
        left = self.comparison()
        if self.next.is_word("is"):
            return self.is_condition(left)
        negated = self.next.is_word("not") and self.following.is_word(
            "in", "between", "like", "ilike", "rlike", "regexp"
        )
        if negated:
            self.advance()
        if self.next.is_word("like", "ilike") and self.following.is_word("any", "some", "all"):
            return self.several_patterns(left, negated=negated)
        predicate = self.positive_predicate(left)
        return self.joined("not", predicate) if negated else predicate

    def positive_predicate(self, left: Node) -> Node:
        if self.skip_word("between"):
            low = self.comparison()
            self.expect("and")
            return self.joined("between", left, low, self.comparison())
        if self.skip_word("in"):
            self.expect("(")
            return self.joined("in", left, *self.arguments())
        if self.next.is_word("like", "ilike"):
            function = self.advance().value.lower()
            pattern = self.comparison()
            escape = (self.comparison(),) if self.skip_word("escape") else ()
            return self.joined(function, left, pattern, *escape)
        if self.skip_word("rlike", "regexp"):
            return self.joined("rlike", left, self.comparison())
        return left

    def several_patterns(self, left: Node, *, negated: bool) -> Node:
        """Parse `like any ('a%', 'b%')` or `like all (...)`. `not like any` holds if some pattern does not match."""
        function = self.advance().value.lower()
        together = "and" if self.advance().value.lower() == "all" else "or"
        self.expect("(")
        tests: list[Node] = [self.joined(function, left, pattern) for pattern in self.arguments()]
        return balanced(together, [self.joined("not", node) for node in tests] if negated else tests)

    def is_condition(self, left: Node) -> Node:
        self.expect("is")
        negated = self.skip_word("not")
        if self.skip_word("null"):
            return self.joined("isnotnull" if negated else "isnull", left)
        if self.skip_word("distinct"):
            self.expect("from")
            same = self.joined("<=>", left, self.comparison())
            return same if negated else self.joined("not", same)
        if self.next.is_word("true", "false"):
            token = self.advance()
            truth = Literal(token.start, token.end, token.value.lower() == "true", types.BOOLEAN)
            same = self.joined("<=>", left, truth)
            return self.joined("not", same) if negated else same
        raise self.unexpected("'null', 'true', 'false' or 'distinct from'")

    # ---- operators -------------------------------------------------------------------------------------------

    def sum_like(self) -> Node:
        return self.comparison()

    def comparison(self) -> Node:
        left = self.bits(0)
        while self.next.is_sign(*_COMPARISONS):
            function = _COMPARISONS[self.advance().value]
            left = self.joined(function, left, self.bits(0))
        return left

    def bits(self, level: int) -> Node:
        """Parse the operators on bits, from `|` (level 0) to the shifts."""
        if level == len(_BIT_OPERATORS):
            return self.sum()
        left = self.bits(level + 1)
        while self.next.is_sign(*_BIT_OPERATORS[level]):
            function = self.advance().value
            left = self.joined(function, left, self.bits(level + 1))
        return left

    def sum(self) -> Node:
        left = self.product()
        while self.next.is_sign("+", "-", "||"):
            function = self.advance().value
            left = self.joined(function, left, self.product())
        return left

    def product(self) -> Node:
        left = self.unary()
        while self.next.is_sign("*", "/", "%") or self.next.is_word("div"):
            function = self.advance().value.lower()
            left = self.joined(function, left, self.unary())
        return left

    def unary(self) -> Node:
        start, signs = self.next.start, []
        while self.next.is_sign("-", "+", "~"):
            if self.next.value == "-" and self.following.kind is TokenKind.NUMBER:
                break
            signs.append(self.advance().value)
        operand = self.followed(self.operand())
        for sign in reversed(signs):
            if sign != "+":
                operand = Call(start, self.last_end(), "negative" if sign == "-" else sign, (operand,))
        return operand
