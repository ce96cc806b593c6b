"""Parts of JSON documents: get_json_object, json_array_length and json_object_keys.

Documents are read once per distinct text. The rules for paths with `[*]` are Hive's, which Spark follows: results of
one wildcard are an array if there is more than one, and two wildcards in a row flatten one level.
"""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from statebed.expressions import types
from statebed.expressions.distinct_values import by_distinct
from statebed.expressions.functions.characters import per_value
from statebed.expressions.functions.json_documents import (
    Json,
    JsonObject,
    MalformedError,
    document,
    storable,
    written,
)
from statebed.expressions.functions.strings import as_text
from statebed.expressions.sites import Builder, Site, of
from statebed.expressions.terms import Term

_NODE = re.compile(
    r"\s*(?:(?P<wildcard>\.\s*\*|\[\s*'\s*\*\s*'\s*\])|\.\s*(?P<name>[^.\[]+)|\[\s*'\s*(?P<quoted>[^'?]+)'\s*\]"
    r"|\[\s*(?:(?P<every>\*)|(?P<index>\d{1,18}))\s*\])"
)
_MAX_PLAIN, _MIN_PLAIN = 1e7, 1e-3


@dataclass(frozen=True)
class Field:
    """A step into a field of an object."""

    name: str


@dataclass(frozen=True)
class Item:
    """A step into an element of an array; None stands for every element."""

    index: int | None


@dataclass(frozen=True)
class AnyField:
    """`.*`, which Spark reads but never matches."""


Step = Field | Item | AnyField
RAW, QUOTED, FLAT = "raw", "quoted", "flat"
_PATHS = 1_024
"""Number of paths that are remembered: rows can have any."""


@lru_cache(maxsize=_PATHS)
def path_steps(path: str) -> tuple[Step, ...] | None:
    """Return the steps of a path such as $.a[0].b; None if it is no path."""
    match = re.match(r"\s*\$", path)
    if match is None:
        return None
    at = match.end()
    steps: list[Step] = []
    while at < len(path):
        node = _NODE.match(path, at)
        if node is None:
            return None if path[at:].strip() else tuple(steps)
        if node["wildcard"]:
            steps.append(AnyField())
        elif node["name"] or node["quoted"]:
            steps.append(Field(node["name"] or node["quoted"]))
        else:
            steps.append(Item(None if node["every"] else int(node["index"])))
        at = node.end()
    return tuple(steps)


def java_double(value: float) -> str:
    """Return a double as Java writes it into JSON: 1.0E10; values that are not finite are texts."""
    if value != value or value in {float("inf"), float("-inf")}:  # noqa: PLR0124 - NaN
        return {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}[str(value)]
    size = abs(value)
    if not size or _MIN_PLAIN <= size < _MAX_PLAIN:
        return repr(value) if "e" not in repr(value) else f"{value:f}"
    shown = repr(value)
    mantissa, _, power = (shown if "e" in shown else _scientific(shown)).partition("e")
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}E{int(power)}"


def _scientific(shown: str) -> str:
    """Return the digits of a number without an exponent as d.ddde5."""
    sign, digits = ("-", shown[1:]) if shown.startswith("-") else ("", shown)
    whole, _, fraction = digits.partition(".")
    significant = (whole + fraction).lstrip("0")
    power = len(whole) - 1 - (len(whole + fraction) - len(significant))
    rest = significant[1:].rstrip("0") or "0"
    return f"{sign}{significant[0]}.{rest}e{power}"


def _get_json_object(site: Site) -> Term:
    text, path = (as_text(site, operand) for operand in site.operands)
    return site.apply(partial(by_distinct, _part, types.TEXT), types.TEXT, text, path, nullable=True)


def _part(text: str, path: str) -> str | None:
    steps = path_steps(path)
    if steps is None:
        return None
    try:
        value = document(text, control_characters=True)
    except MalformedError:
        return None
    matches = _matches(value, steps, RAW)
    return storable("".join(matches)) if matches else None


def _matches(value: Json, steps: Sequence[Step], style: str) -> list[str]:  # noqa: PLR0911, C901 - one return per rule
    """Return the JSON texts of what a path finds."""
    if not steps:
        if isinstance(value, str) and style == RAW:
            return [value]
        if isinstance(value, list) and style == FLAT:
            return [matches for item in value for matches in _matches(item, (), style)]
        return [written(value, java_double)]
    step, rest = steps[0], steps[1:]
    if isinstance(value, JsonObject) and isinstance(step, Field):
        for name, item in value:
            matches = _matches(item, rest, style) if name == step.name and item is not None else []
            if matches:
                return matches
        return []
    if not isinstance(value, list) or not isinstance(step, Item):
        return []
    if step.index is not None:
        if step.index >= len(value):
            return []
        is_next_wildcard = bool(rest) and rest[0] == Item(None)
        return _matches(value[step.index], rest, QUOTED if is_next_wildcard else style)
    if rest and rest[0] == Item(None):
        texts = [_matches(item, rest[1:], FLAT) for item in value]
        return [_array(texts)] if any(texts) else []
    texts = [_matches(item, rest, FLAT if style == FLAT else QUOTED) for item in value]
    count = sum(map(bool, texts))
    if style != QUOTED and count == 1:
        return [",".join(itertools.chain(*texts))]
    return [_array(texts)] if count else []


def _array(matches: Sequence[Sequence[str]]) -> str:
    return f"[{','.join(text for texts in matches for text in texts)}]"


def _array_length(text: str) -> int | None:
    value = _root(text)
    return len(value) if isinstance(value, list) else None


def _object_keys(text: str) -> list[str] | None:
    value = _root(text)
    return [storable(name) for name, _ in value] if isinstance(value, JsonObject) else None


def _root(text: str) -> Json:
    try:
        return document(text, control_characters=True)
    except MalformedError:
        return None


BUILDERS: dict[str, Builder] = {
    "get_json_object": of(_get_json_object, 2),
    "json_array_length": per_value(_array_length, types.INT, types.TEXT, maybe=True),
    "json_object_keys": per_value(_object_keys, types.list_of(types.TEXT), types.TEXT, maybe=True),
}
