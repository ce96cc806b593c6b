"""Parser of operands: numbers, texts, names, calls, `case`, and suffixes (`.field`, `[index]`, `::type`)."""

from abc import ABC, abstractmethod
from dataclasses import replace

import pyarrow as pa

from statebed.expressions import types
from statebed.expressions.language.cursor import Cursor
from statebed.expressions.language.literals import UNITS, interval, interval_of_text, microseconds, number, unit_of
from statebed.expressions.language.tokens import TokenKind
from statebed.expressions.language.tree import Call, Case, Cast, FieldOf, Literal, Name, Node, TimeLiteral

_TIME_LITERALS = {
    "timestamp": types.TIMESTAMP,
    "timestamp_ltz": types.TIMESTAMP,
    "timestamp_ntz": types.NAIVE_TIMESTAMP,
    "date": types.DATE,
}


class Operands(Cursor, ABC):
    """Parses operands. Parentheses contain a whole expression."""

    @abstractmethod
    def expression(self) -> Node:
        """Parse a whole expression."""

    def joined(self, function: str, left: Node, *others: Node) -> Call:
        """Build a call that spans from its first operand to the token that was read last."""
        return Call(left.start, self.last_end(), function, (left, *others))

    def followed(self, operand: Node) -> Node:
        while True:
            if self.skip_sign("["):
                index = self.expression()
                self.expect("]")
                operand = self.joined("[]", operand, index)
            elif self.skip_sign("."):
                field = self.name("the name of a field")
                operand = FieldOf(operand.start, self.last_end(), operand, field)
            elif self.skip_sign("::"):
                kind = self.type()
                operand = Cast(operand.start, self.last_end(), operand, kind, lenient=False)
            else:
                return operand

    def operand(self) -> Node:
        token = self.next
        if self.skip_sign("("):
            inner = self.expression()
            self.expect(")")
            return replace(inner, start=token.start, end=self.last_end())
        if token.is_sign("-"):
            self.advance()
            return number(self.place, self.advance(), negative=True, start=token.start)
        if token.kind is TokenKind.NUMBER:
            return number(self.place, self.advance(), negative=False, start=token.start)
        if token.kind is TokenKind.TEXT:
            return self.text()
        if token.kind is TokenKind.QUOTED_NAME:
            return self.column()
        if token.kind is TokenKind.WORD:
            return self.word()
        raise self.unexpected("a value")

    def text(self) -> Literal:
        start, parts = self.next.start, []
        while self.next.kind is TokenKind.TEXT:
            parts.append(self.advance().value)
        return Literal(start, self.last_end(), "".join(parts), types.TEXT)

    def word(self) -> Node:  # noqa: PLR0911 - one for each kind of operand
        token, following = self.next, self.following
        word = token.value.lower()
        if word in {"true", "false"}:
            self.advance()
            return Literal(token.start, token.end, word == "true", types.BOOLEAN)
        if word == "null":
            self.advance()
            return Literal(token.start, token.end, None, types.NULL)
        if word == "case":
            return self.case()
        if word == "interval" and (following.kind in {TokenKind.NUMBER, TokenKind.TEXT} or following.is_sign("-")):
            return self.interval()
        if word in _TIME_LITERALS and following.kind is TokenKind.TEXT:
            self.advance()
            content = self.advance()
            return TimeLiteral(token.start, content.end, content.value, _TIME_LITERALS[word])
        if following.is_sign("("):
            return self.call()
        return self.column()

    def column(self) -> Name:
        start, parts = self.next.start, [self.name("a value")]
        while self.skip_sign("."):
            parts.append(self.name("the name of a field"))
        return Name(start, self.last_end(), tuple(parts))

    def call(self) -> Node:
        token = self.advance()
        function = token.value.lower()
        self.expect("(")
        if function in {"cast", "try_cast"}:
            operand = self.expression()
            self.expect("as")
            kind = self.type()
            self.expect(")")
            return Cast(token.start, self.last_end(), operand, kind, lenient=function == "try_cast")
        if function == "struct":
            return self.struct(token.start)
        arguments = () if self.skip_sign(")") else self.arguments()
        return Call(token.start, self.last_end(), function, arguments)

    def arguments(self) -> tuple[Node, ...]:
        """Parse arguments up to the closing parenthesis."""
        found = [self.expression()]
        while self.skip_sign(","):
            found.append(self.expression())
        self.expect(")")
        return tuple(found)

    def struct(self, start: int) -> Call:
        """Parse `struct` as named_struct: a field is named by `as`, by its column, or by its number."""
        found: list[Node] = []
        while not found or self.skip_sign(","):
            value = self.expression()
            own = value.parts[-1] if isinstance(value, Name) else f"col{len(found) // 2 + 1}"
            name = self.name("a name") if self.skip_word("as") else own
            found += [Literal(value.start, self.last_end(), name, types.TEXT), value]
        self.expect(")")
        return Call(start, self.last_end(), "named_struct", tuple(found))

    def case(self) -> Case:
        start = self.expect("case").start
        subject = None if self.next.is_word("when") else self.expression()
        branches = []
        while self.skip_word("when"):
            condition = self.expression()
            if subject is not None:
                condition = Call(condition.start, condition.end, "=", (subject, condition))
            self.expect("then")
            branches.append((condition, self.expression()))
        if not branches:
            raise self.unexpected("'when'")
        otherwise = self.expression() if self.skip_word("else") else None
        self.expect("end")
        return Case(start, self.last_end(), tuple(branches), otherwise)

    def interval(self) -> Literal:
        start, total = self.advance().start, 0
        if self.next.kind is TokenKind.TEXT and unit_of(self.following.value) not in UNITS:
            content = self.advance()
            return interval_of_text(self.place.at(start, content.end), content.value)
        first = True
        while first or self.next.kind in {TokenKind.NUMBER, TokenKind.TEXT}:
            negative = self.skip_sign("-")
            amount, unit = self.advance(), self.advance()
            at = self.place.at(start, unit.end)
            if amount.kind not in {TokenKind.NUMBER, TokenKind.TEXT} or unit.kind is not TokenKind.WORD:
                raise at.mistake("an interval consists of amounts and units", fix="write interval 5 minutes")
            value = microseconds(at, amount.value.strip(), unit.value)
            total += -value if negative else value
            first = False
        return interval(self.place.at(start, self.last_end()), total)

    def type(self) -> pa.DataType:
        start = self.next.start
        name = self.name("a type")
        if self.skip_sign("("):
            numbers = [self.advance().value]
            while self.skip_sign(","):
                numbers.append(self.advance().value)
            self.expect(")")
            name += f"({','.join(numbers)})"
        kind = types.type_named(name.lower())
        if kind is None:
            known = ", ".join(sorted(types.NAMED))
            raise self.place.at(start, self.last_end()).mistake(
                f"there is no type {name}", fix=f"use decimal(precision, scale), or one of {known}"
            )
        return kind
