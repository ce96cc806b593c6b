"""Convert Arrow values to values that JSON can hold. The same rules apply at any depth of structs, lists and maps.

| type | in JSON |
|---|---|
| float, half float | number: the shortest decimal that gives the same float again, 320.1 and not 320.1000061035156 |
| NaN and the infinities | the texts `NaN`, `Infinity`, `-Infinity`: JSON has no such numbers |
| integer | number, all digits, also beyond 2^53 |
| decimal | text, exact |
| timestamp | ISO 8601 text with all digits of its unit: `2026-01-31T12:00:00.000000Z` with a zone, else without `Z` |
| date, time | ISO 8601 text |
| duration | microseconds; a duration in nanoseconds may have a fraction |
| binary | text in base64 |
| struct, map | object; map keys that are not text become text |
"""

import base64
import json
import math
from collections.abc import Iterator
from itertools import islice, pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.columns import fixed_width_values, one_chunk, validity
from statebed.errors import UnsupportedTypeError
from statebed.format.time_texts import iso_texts

_NANOSECONDS_PER_MICROSECOND = 1_000
_ESCAPED = r'["\\\x00-\x1f]'
"""Characters that a text of JSON must not have as they are."""
_INFINITY = {True: "Infinity", False: "-Infinity"}


def json_objects(rows: pa.Table) -> list[dict[str, Any]]:
    """Return each row as an object of values that JSON can hold."""
    columns = [json_values(one_chunk(column)) for column in rows.columns]
    return [dict(zip(rows.schema.names, values, strict=True)) for values in zip(*columns, strict=True)]


def json_lines(rows: pa.Table) -> pa.Array:
    """Return each row as the JSON text of its object."""
    parts = []
    for place, (name, column) in enumerate(zip(rows.schema.names, rows.columns, strict=True)):
        beginning = f"{',' if place else '{'}{msgspec.json.encode(name).decode()}:"
        parts += [pa.scalar(beginning), pc.fill_null(json_texts(one_chunk(column)), "null")]
    if not parts:
        return pa.array(["{}"] * rows.num_rows, pa.string())
    return pc.binary_join_element_wise(*parts, "}", "")


def json_texts(array: pa.Array) -> pa.Array:
    """Return each value as JSON text; null stays null."""
    if pa.types.is_integer(array.type) or pa.types.is_boolean(array.type):
        return array.cast(pa.string())
    if pa.types.is_string(array.type) and not pc.any(pc.match_substring_regex(array, _ESCAPED)).as_py():
        return pc.binary_join_element_wise('"', array, '"', "")
    texts = [None if value is None else msgspec.json.encode(value).decode() for value in json_values(array)]
    return pa.array(texts, pa.string())


def json_values(array: pa.Array) -> list[Any]:  # noqa: PLR0911 - one line per type
    """Return each value as JSON can hold it; null becomes None."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return json_values(array.storage)
    if pa.types.is_dictionary(kind):
        return json_values(array.dictionary_decode())
    if pa.types.is_struct(kind):
        return _structs(array)
    if pa.types.is_map(kind):
        return _maps(array)
    if pa.types.is_nested(kind) and not pa.types.is_union(kind):
        return _lists(array)
    if pa.types.is_floating(kind):
        return [value if value is None or math.isfinite(value) else _not_finite(value) for value in _floats(array)]
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return iso_texts(array)
    if pa.types.is_time(kind) or pa.types.is_decimal(kind):
        return list(array.cast(pa.string()).to_pylist())
    if pa.types.is_duration(kind):
        return _durations(array)
    values: list[Any] = array.to_pylist()
    return [base64.b64encode(value).decode() if isinstance(value, bytes) else value for value in values]


def _structs(array: pa.StructArray) -> list[dict[str, Any] | None]:
    names = [array.type.field(place).name for place in range(array.type.num_fields)]
    fields = [json_values(array.field(place)) for place in range(array.type.num_fields)]
    rows = zip(*fields, strict=True) if fields else ((),) * len(array)
    return [
        dict(zip(names, row, strict=True)) if valid else None for row, valid in zip(rows, validity(array), strict=True)
    ]


def _lists(array: pa.Array) -> list[list[Any] | None]:
    items: Iterator[Any] = iter(json_values(array.flatten()))  # without the values under nulls
    lengths: list[int | None] = pc.list_value_length(array).to_pylist()
    return [None if length is None else list(islice(items, length)) for length in lengths]


def _maps(array: pa.MapArray) -> list[dict[str, Any] | None]:
    offsets: list[int] = array.offsets.to_pylist()
    first, end = (offsets[0], offsets[-1]) if len(array) else (0, 0)
    keys = [_name(key) for key in json_values(array.keys.slice(first, end - first))]
    items = json_values(array.items.slice(first, end - first))
    objects: list[dict[str, Any] | None] = []
    for (start, stop), valid in zip(pairwise(offsets), validity(array), strict=True):
        here = keys[start - first : stop - first] if valid else []
        if len(set(here)) < len(here):
            raise UnsupportedTypeError(
                f"a map has the key {max(here, key=here.count)!r} twice, which a JSON object cannot have",
                fix="remove duplicate keys before the sink",
            )
        objects.append(dict(zip(here, items[start - first : stop - first], strict=False)) if valid else None)
    return objects


def _name(key: Any) -> str:
    """Return a map key as the name of an object's member; nested keys are JSON text."""
    return json.dumps(key, ensure_ascii=False) if isinstance(key, dict | list) else str(key)


def _floats(array: pa.Array) -> list[float | None]:
    """Return doubles whose shortest decimal text equals that of the value in the array's own, narrower type."""
    if pa.types.is_float32(array.type):
        array = array.cast(pa.string()).cast(pa.float64())
    elif pa.types.is_float16(array.type):
        shortest = [float(str(value)) for value in fixed_width_values(array, np.float16)]
        return [value if valid else None for value, valid in zip(shortest, validity(array), strict=True)]
    values: list[float | None] = array.to_pylist()
    return values


def _not_finite(value: float) -> str:
    return "NaN" if math.isnan(value) else _INFINITY[value > 0]


def _durations(array: pa.Array) -> list[int | float | None]:
    if array.type.unit != "ns":
        return list(array.cast(pa.duration("us")).cast(pa.int64()).to_pylist())
    values: list[int | None] = array.cast(pa.int64()).to_pylist()
    return [None if value is None else _microseconds(value) for value in values]


def _microseconds(nanoseconds: int) -> int | float:
    whole, rest = divmod(nanoseconds, _NANOSECONDS_PER_MICROSECOND)
    return nanoseconds / _NANOSECONDS_PER_MICROSECOND if rest else whole
