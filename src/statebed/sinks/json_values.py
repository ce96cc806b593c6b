"""Arrow rows as values that JSON has.

| type | in JSON |
|---|---|
| timestamp, date, time | text of ISO 8601, `2026-01-31T12:00:00.000000Z` with a zone, without `Z` otherwise |
| duration | microseconds |
| decimal | text, exact |
| binary | text in base64 |
| NaN and the infinities | the texts `NaN`, `Infinity`, `-Infinity`: JSON has no such numbers |
| struct, map | object; keys that are no text become text |
"""

import base64
import datetime as dt
import decimal
import math
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from statebed.format.columns import one_chunk

_MICROSECOND = dt.timedelta(microseconds=1)


def json_objects(rows: pa.Table) -> list[dict[str, Any]]:
    """Each row as an object of values that JSON has."""
    columns = [json_values(one_chunk(column)) for column in rows.columns]
    return [dict(zip(rows.schema.names, values, strict=True)) for values in zip(*columns, strict=True)]


def json_values(array: pa.Array) -> list[Any]:
    """Each value as JSON has it; None stays None."""
    kind = array.type
    if pa.types.is_timestamp(kind):
        # Not through datetime: Arrow's years go beyond 9999.
        return list(pc.replace_substring(array.cast(pa.string()), " ", "T", max_replacements=1).to_pylist())
    if pa.types.is_date(kind) or pa.types.is_time(kind) or pa.types.is_decimal(kind):
        return list(array.cast(pa.string()).to_pylist())
    if pa.types.is_duration(kind):
        return list(array.cast(pa.duration("us")).cast(pa.int64()).to_pylist())
    values: list[Any] = array.to_pylist(maps_as_pydicts="strict")
    if pa.types.is_floating(kind) or pa.types.is_nested(kind) or pa.types.is_binary(kind):
        return [_plain(value) for value in values]
    return values


def json_texts(array: pa.Array) -> pa.Array:
    """Each value as JSON text; null stays null."""
    texts = [None if value is None else msgspec.json.encode(value).decode() for value in json_values(array)]
    return pa.array(texts, pa.string())


def _plain(value: Any) -> Any:  # noqa: PLR0911 - one line per type
    match value:
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case bytes():
            return base64.b64encode(value).decode()
        case dt.datetime():
            return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
        case dt.date() | dt.time():
            return value.isoformat()
        case dt.timedelta():
            return value // _MICROSECOND
        case decimal.Decimal():
            return str(value)
        case dict():
            return {str(_plain(name)): _plain(item) for name, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case _:
            return value
