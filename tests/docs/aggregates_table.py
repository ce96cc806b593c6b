"""Writes the names and the table of aggregates in docs/reference: `python tests/docs/aggregates_table.py`."""

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from statebed.aggregates import functions
from statebed.aggregates.aggregate import Aggregate, EventTime
from statebed.aggregates.declaration import USER_DEFINED, Retraction, function_named
from statebed.aggregates.preaggregation import aggregate_parts
from statebed.errors import InputError
from statebed.expressions.column_like import ColumnLike
from statebed.format.schema import TIMESTAMP

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"
PAGE = REFERENCE / "aggregates.md"
API = REFERENCE / "api.md"
_HEAD = (
    "| aggregate | meaning | state | [in the JVM](#pre-aggregation-in-the-jvm) | retracts |\n|---|---|---|---|---|\n"
)
_NAMES = "[Aggregates](aggregates.md): "
_KINDS = {
    "integers": [pa.int8(), pa.int64()],
    "decimals": [pa.decimal128(28, 2)],
    "floats": [pa.float32(), pa.float64()],
    "others": [pa.string(), pa.binary(), pa.bool_(), pa.date32(), TIMESTAMP],
}
_ARGUMENTS = {"at": 0.5}
"""Values for parameters without a default that are not columns."""


def table() -> str:
    """Every aggregate, as it is declared."""
    return _HEAD + "".join(f"| {' | '.join(_cells(name, getattr(functions, name)))} |\n" for name in functions.__all__)


def names() -> str:
    """The names of all aggregates, for the page of the API."""
    listed = ", ".join(f"`sb.{name}`" for name in functions.__all__ if name != USER_DEFINED)
    return f"{_NAMES}{listed}, and `sb.{USER_DEFINED}` for [your own](../howto/user-defined-aggregates.md).\n"


def page() -> str:
    """The page of aggregates with the table as it should be."""
    before, found, rest = PAGE.read_text(encoding="utf-8").partition(_HEAD)
    if not found:
        raise ValueError(f"{PAGE.name} has no table of aggregates")
    lines = rest.splitlines(keepends=True)
    after = next(number for number, line in enumerate(lines) if not line.startswith("|"))
    return before + table() + "".join(lines[after:])


def api_page() -> str:
    """The page of the API with the names as they should be."""
    before, _, rest = API.read_text(encoding="utf-8").partition(_NAMES)
    return before + names() + rest[rest.index("\n\n") + 1 :]


def _cells(name: str, public: Callable[..., Aggregate]) -> Iterator[str]:
    yield f"`{name}({_parameters(public)})`"
    yield " ".join((inspect.getdoc(public) or "").partition(">>>")[0].split())
    if name == USER_DEFINED:
        yield from ("as declared", "no", "invertible with `retract`, otherwise refuses")
        return
    function = _called(public).function
    yield function_named(function.name).state
    yield ", ".join(_kinds_in_the_jvm(public))
    assert function.retraction in Retraction
    yield function.retraction.value


def _parameters(public: Callable[..., Aggregate]) -> str:
    shown = [parameter for parameter in inspect.signature(public).parameters.values() if parameter.name != "where"]
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in shown]
    return ", ".join(str(parameter) for parameter in plain).replace("'", '"')


def _called(public: Callable[..., Aggregate]) -> Aggregate:
    parameters = inspect.signature(public).parameters.values()
    positional = [one for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
    needed = [one for one in positional if one.default is one.empty or one.annotation == (ColumnLike | None)]
    return public(*(_ARGUMENTS.get(one.name, one.name) for one in needed))


def _kinds_in_the_jvm(public: Callable[..., Aggregate]) -> list[str]:
    """Types of values for which the JVM can pre-aggregate, of those that the aggregate accepts."""
    answers: dict[str, set[bool]] = {}
    for word, kinds in _KINDS.items():
        for kind in kinds:
            aggregate = _called(public)
            types = tuple(TIMESTAMP if one is EventTime.EVENT_TIME else kind for one in aggregate.inputs)
            try:
                bound = aggregate.bind("a", input_types=types)
            except InputError:
                continue
            # The page names the exception: text by text has no order that Spark could reverse.
            if aggregate.function.name != "max_by" or kind not in {pa.string(), pa.binary()}:
                answers.setdefault(word, set()).add(aggregate_parts(0, bound) is not None)
    if answers and all(answer == {True} for answer in answers.values()):
        return ["yes"]
    return [word for word, answer in answers.items() if answer == {True}] or ["no"]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    API.write_text(api_page(), encoding="utf-8")
