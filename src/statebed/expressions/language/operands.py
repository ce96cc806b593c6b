"""Parser of operands: numbers, texts, names, calls, `case`, and suffixes (`.field`, `[index]`, `::type`)."""

from abc import ABC, abstractmethod
from dataclasses import replace

import pyarrow as pa

from statebed.expressions import types
from statebed.expressions.language.cursor import Cursor
from statebed.expressions.language.literals import (
    UNITS,
    interval,
    interval_of_fields,
    interval_of_text,
    microseconds,
    number,
    unit_of,
)
from statebed.expressions.language.tokens import TokenKind
from statebed.expressions.language.tree import Call, Case, Cast, FieldOf, Lambda, Literal, Name, Node, TimeLiteral

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
                field = self.label("the name of a field")
                operand = FieldOf(operand.start, self.last_end(), operand, field)
            elif self.skip_sign("::"):
                kind = self.type()
                operand = Cast(operand.start, self.last_end(), operand, kind, lenient=False)
            else:
                return operand

    def operand(self) -> Node:  # noqa: PLR0911 - one for each kind of token
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
        if token.kind is TokenKind.BINARY:
            return self.binary()
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

    def binary(self) -> Literal:
        token = self.advance()
        try:
            content = bytes.fromhex("0" * (len(token.value) % 2) + token.value)
        except ValueError:
            raise self.place.at(token.start, token.end).mistake(
                "X'...' contains something other than hexadecimal digits", fix="write X'1F'"
            ) from None
        return Literal(token.start, token.end, content, types.BINARY)

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
            parts.append(self.label("the name of a field"))
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
        special = self.special_call(function)
        if special is not None:
            return Call(token.start, self.last_end(), *special)
        arguments = () if self.skip_sign(")") else self.arguments()
        return Call(token.start, self.last_end(), function, arguments)

    def special_call(self, function: str) -> tuple[str, tuple[Node, ...]] | None:
        """Parse calls with words between their arguments, as in `extract(hour from at)`; None for any other call."""
        if function == "extract":
            field = self.advance()
            self.expect("from")
            named = Literal(field.start, field.end, field.value, types.TEXT)
            return "date_part", (named, *self.arguments())
        if function in {"timestampadd", "dateadd", "date_add", "timestampdiff", "datediff", "date_diff"}:
            return self.call_with_unit(function)
        if function == "trim" and self.next.is_word("both", "leading", "trailing"):
            side = {"both": "btrim", "leading": "ltrim", "trailing": "rtrim"}[self.advance().value.lower()]
            characters = () if self.next.is_word("from") else (self.expression(),)
            self.expect("from")
            text = self.arguments()
            return side, (*text, *characters) if side == "btrim" else (*characters, *text)
        return self.call_with_words(function)

    def call_with_unit(self, function: str) -> tuple[str, tuple[Node, ...]] | None:
        """Parse `timestampadd(hour, 2, at)`, whose first argument is the name of a unit."""
        unit, before = self.next, self.position
        if unit.kind is not TokenKind.WORD or unit_of(unit.value) not in UNITS or not self.following.is_sign(","):
            return None
        self.advance()
        self.expect(",")
        arguments = self.arguments()
        if len(arguments) == 1:
            # A column that is called `day`, as in `dateadd(day, 3)`.
            self.position = before
            return None
        named = Literal(unit.start, unit.end, unit_of(unit.value), types.TEXT)
        return "timestampadd" if "add" in function else "timestampdiff", (named, *arguments)

    def call_with_words(self, function: str) -> tuple[str, tuple[Node, ...]] | None:
        """Parse `substring(s from 2 for 3)`, `overlay(s placing t from 2)`, `position('a' in s)` or a plain call."""
        if function not in {"substring", "substr", "overlay", "position", "trim"}:
            return None
        start = self.position
        first = self.sum_like()
        if function == "position" and self.skip_word("in"):
            return "locate", (first, *self.arguments())
        if function == "trim" and self.skip_word("from"):
            return "btrim", (*self.arguments(), first)
        arguments = [first]
        if function == "overlay" and self.skip_word("placing"):
            arguments.append(self.expression())
        if len(arguments) + (function != "overlay") < 2 or not self.skip_word("from"):  # noqa: PLR2004 - text and position
            self.position = start
            return None
        arguments.append(self.expression())
        if self.skip_word("for"):
            arguments.append(self.expression())
        self.expect(")")
        return function, tuple(arguments)

    @abstractmethod
    def sum_like(self) -> Node:
        """Parse an operand that `in` may follow: anything that binds more tightly than a predicate."""

    def arguments(self) -> tuple[Node, ...]:
        """Parse arguments up to the closing parenthesis."""
        parsed = [self.argument()]
        while self.skip_sign(","):
            parsed.append(self.argument())
        self.expect(")")
        return tuple(parsed)

    def argument(self) -> Node:
        start, before = self.next.start, self.position
        parameters = self.parameters()
        if parameters is None:
            self.position = before
            return self.expression()
        body = self.expression()
        return Lambda(start, body.end, parameters, body)

    def parameters(self) -> tuple[str, ...] | None:
        """Parse the parameters and the arrow of a lambda function; None if something else stands here."""
        in_parentheses = self.skip_sign("(")
        names = []
        while self.next.kind in {TokenKind.WORD, TokenKind.QUOTED_NAME}:
            names.append(self.advance().value)
            if not in_parentheses or not self.skip_sign(","):
                break
        if not names or (in_parentheses and not self.skip_sign(")")) or not self.skip_sign("->"):
            return None
        return tuple(names)

    def struct(self, start: int) -> Call:
        """Parse `struct` as named_struct: a field is named by `as`, by its column, or by its number."""
        names_and_values: list[Node] = []
        while not names_and_values or self.skip_sign(","):
            value = self.expression()
            own = value.parts[-1] if isinstance(value, Name) else f"col{len(names_and_values) // 2 + 1}"
            name = self.label("a name") if self.skip_word("as") else own
            names_and_values += [Literal(value.start, self.last_end(), name, types.TEXT), value]
        self.expect(")")
        return Call(start, self.last_end(), "named_struct", tuple(names_and_values))

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
                raise at.mistake("an interval needs amounts and units", fix="write interval 5 minutes")
            if first and self.skip_word("to"):
                last = self.advance()
                at = self.place.at(start, last.end)
                span = interval_of_fields(at, amount.value, unit_of(unit.value), unit_of(last.value))
                return interval(at, -span if negative else span)
            value = microseconds(at, amount.value.strip(), unit.value)
            total += -value if negative else value
            first = False
        return interval(self.place.at(start, self.last_end()), total)

    def type(self) -> pa.DataType:
        start = self.next.start
        name = self.name("a type")
        if name.lower() in {"array", "map", "struct"} and self.skip_sign("<"):
            return self.nested_type(name.lower())
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
                f"there is no type {name}",
                fix=f"use decimal(precision, scale), array<t>, map<k, v>, struct<name: t>, or one of {known}",
            )
        return kind

    def nested_type(self, name: str) -> pa.DataType:
        """Parse the rest of `array<t>`, `map<k, v>` or `struct<a: t, b: t>`."""
        if name == "struct":
            fields = [self.field()]
            while self.skip_sign(","):
                fields.append(self.field())
            kind = pa.struct(fields)
        elif name == "map":
            key = self.type()
            self.expect(",")
            kind = pa.map_(key, self.type())
        else:
            kind = types.list_of(self.type())
        self.close_angle()
        return kind

    def field(self) -> pa.Field:
        name = self.label("the name of a field")
        self.skip_sign(":")
        kind = self.type()
        nullable = not self.skip_word("not")
        if not nullable:
            self.expect("null")
        return pa.field(name, kind, nullable=nullable)

    def close_angle(self) -> None:
        """Skip `>`, which may be the first character of `>>` or `>>>`."""
        token = self.next
        if not token.is_sign(">", ">>", ">>>"):
            raise self.unexpected("'>'")
        if token.value == ">":
            self.advance()
        else:
            self.tokens[self.position] = replace(token, value=token.value[1:], start=token.start + 1)
