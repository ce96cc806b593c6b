"""Calls during binding: checks of operands and construction of terms for the builders of functions."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from statebed.expressions import types
from statebed.expressions.mistakes import TextSpan
from statebed.expressions.terms import Kernel, Term, applied

_NAME = re.compile(r"(\w+|`[^`]+`)(\.(\w+|`[^`]+`))*")
_ANY_NUMBER = 1_000_000


@dataclass(frozen=True)
class LambdaBody:
    """A lambda function whose parameters have types: `parameters` are the columns that `term` reads them from."""

    parameters: tuple[str, ...]
    term: Term


@dataclass(frozen=True)
class LambdaSite:
    """A lambda function among the arguments of a call. `bind` takes the type and nullability of each parameter."""

    place: TextSpan
    arity: int
    bind: Callable[..., LambdaBody]


@dataclass(frozen=True)
class Site:
    """A call whose operands are bound. Its lambda functions, which come last, are bound by the builder."""

    place: TextSpan
    function: str
    operands: tuple[Term, ...]
    lambdas: tuple[LambdaSite, ...] = ()

    def apply(
        self, kernel: Kernel, kind: pa.DataType, *operands: Term, nullable: bool | None = None, fallible: bool = False
    ) -> Term:
        """Build the term of this call; without `operands`, over its own."""
        chosen = operands or self.operands
        return applied(self.place, kernel, kind, *chosen, nullable=nullable, fallible=fallible)

    def text_of(self, index: int) -> str:
        """Return an operand that must be a constant text."""
        text = self._constant(index, types.TEXT, "a text")
        return str(text)

    def integer_of(self, index: int) -> int:
        """Return an operand that must be a constant integer."""
        operand = self.operands[index]
        kind = operand.type if types.is_integer(operand.type) else types.INT
        integer = self._constant(index, kind, "an integer")
        return int(str(integer))

    def options_of(self, index: int) -> dict[str, str]:
        """Return an operand that must be a constant map of texts."""
        kind = self.operands[index].type
        is_of_texts = pa.types.is_map(kind) and kind.key_type == kind.item_type == types.TEXT
        pairs = self._constant(index, kind if is_of_texts else types.NULL, "a map of texts")
        assert isinstance(pairs, list)
        return dict(pairs)

    def name_of(self, index: int) -> str | None:
        """Return the name of an operand that is a column or a field, as it is written."""
        written = self.operands[index].place.snippet
        return written.split(".")[-1].strip("`") if _NAME.fullmatch(written) else None

    def _constant(self, index: int, kind: pa.DataType, wanted: str) -> object:
        operand = self.operands[index]
        if operand.constant is None or operand.type != kind or not operand.constant.is_valid:
            raise operand.place.type_mistake(
                f"{self.function} needs {wanted} that is a constant", fix=f"write {wanted} as a literal"
            )
        return operand.constant.as_py()

    def wrong_types(self, wanted: str, *, at: Term | None = None) -> Exception:
        """Build the error for operands that this function does not accept."""
        kinds = " and ".join(types.type_name(operand.type) for operand in self.operands)
        place = self.place if at is None else at.place
        return place.type_mistake(f"{self.function} does not accept {kinds}", fix=f"pass {wanted}, or cast")


Build = Callable[[Site], Term]


@dataclass(frozen=True)
class Builder:
    """Binds a function and knows how many operands it takes."""

    build: Build
    min_operands: int
    max_operands: int
    lambdas: range = range(1)
    """Numbers of lambda functions that may follow the operands."""

    def takes(self) -> str:
        """Describe the number of operands in words."""
        if self.max_operands == _ANY_NUMBER:
            return f"{self.min_operands} or more arguments"
        count = " to ".join(map(str, sorted({self.min_operands, self.max_operands})))
        operands = f"{count} argument{'' if count == '1' else 's'}"
        longest = self.lambdas[-1]
        return operands if not longest else f"{operands}, and {' or '.join(map(str, self.lambdas))} lambda functions"


def of(build: Build, min_operands: int, max_operands: int | None = None, *, lambdas: range = range(1)) -> Builder:
    """Return a builder for `min_operands` to `max_operands` operands, followed by one of the numbers of `lambdas`."""
    return Builder(build, min_operands, min_operands if max_operands is None else max_operands, lambdas)


def of_many(build: Build, min_operands: int = 1) -> Builder:
    """Return a builder for any number of operands, at least `min_operands`."""
    return Builder(build, min_operands, _ANY_NUMBER)
