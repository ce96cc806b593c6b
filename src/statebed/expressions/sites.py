"""A function or operator of the text while it is bound, and what builders of terms ask of its operands."""

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from statebed.expressions import types
from statebed.expressions.mistakes import TextSpan
from statebed.expressions.terms import Kernel, Term, applied

_ANY_NUMBER = 1_000_000


@dataclass(frozen=True)
class Site:
    """A call whose operands are bound."""

    place: TextSpan
    function: str
    operands: tuple[Term, ...]

    def apply(
        self, kernel: Kernel, kind: pa.DataType, *operands: Term, nullable: bool | None = None, fallible: bool = False
    ) -> Term:
        """The term of this call; of its own operands if none are given."""
        given = operands or self.operands
        return applied(self.place, kernel, kind, *given, nullable=nullable, fallible=fallible)

    def text_of(self, index: int) -> str:
        """An operand that must be a text and the same for all rows."""
        found = self._constant(index, types.TEXT, "a text")
        return str(found)

    def integer_of(self, index: int) -> int:
        """An operand that must be an integer and the same for all rows."""
        operand = self.operands[index]
        kind = operand.type if types.is_integer(operand.type) else types.INT
        found = self._constant(index, kind, "an integer")
        return int(str(found))

    def _constant(self, index: int, kind: pa.DataType, wanted: str) -> object:
        operand = self.operands[index]
        if operand.constant is None or operand.type != kind or not operand.constant.is_valid:
            raise operand.place.type_mistake(
                f"{self.function} takes here {wanted} that is the same for all rows", fix=f"write {wanted} itself"
            )
        return operand.constant.as_py()

    def wrong_types(self, wanted: str, *, at: Term | None = None) -> Exception:
        """The error of operands that this function cannot take."""
        given = " and ".join(types.type_name(operand.type) for operand in self.operands)
        place = self.place if at is None else at.place
        return place.type_mistake(f"{self.function} cannot take {given}", fix=f"give {wanted}, or cast")


Build = Callable[[Site], Term]


@dataclass(frozen=True)
class Builder:
    """How a function is bound, and how many operands it takes."""

    build: Build
    least: int
    most: int

    def takes(self) -> str:
        """How many, in words."""
        if self.most == _ANY_NUMBER:
            return f"{self.least} or more"
        return str(self.least) if self.least == self.most else f"{self.least} to {self.most}"


def of(build: Build, least: int, most: int | None = None) -> Builder:
    """A function of so many operands."""
    return Builder(build, least, least if most is None else most)


def of_many(build: Build, least: int = 1) -> Builder:
    """A function of any number of operands."""
    return Builder(build, least, _ANY_NUMBER)
