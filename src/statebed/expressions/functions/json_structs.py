"""from_json, to_json and schema_of_json.

`to_json` writes whole columns: leaves as text, then fields, elements and entries joined. `from_json` reads
columns of plain objects at once, and all else one document after the other. As Spark does by default, it returns null
for a field whose value does not fit its type, and keeps the others. The only options are the names of this mode and of
the column for documents that are malformed or do not fit.
"""

import base64
import binascii
import re
from collections.abc import Callable
from decimal import Context, Decimal
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statebed.expressions import types
from statebed.expressions.casts.from_text import READERS
from statebed.expressions.casts.to_text import writer
from statebed.expressions.distinct_values import by_distinct
from statebed.expressions.far_years import iso_texts
from statebed.expressions.functions.json_columns import ReadTexts, read_documents
from statebed.expressions.functions.json_documents import (
    Json,
    JsonObject,
    MalformedError,
    Written,
    document,
    exact_document,
    plain,
    quoted,
    storable,
    written,
)
from statebed.expressions.functions.json_paths import java_double
from statebed.expressions.functions.strings import as_text, joined
from statebed.expressions.sites import Builder, Site, of
from statebed.expressions.terms import Datum, Term, arrays, constant
from statebed.expressions.text_limits import check_size, is_small, text_bytes
from statebed.expressions.type_text import schema_of, type_of

_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RANGES = {types.TINYINT: 8, types.SMALLINT: 16, types.INT: 32, types.BIGINT: 64}
_NOT_FINITE = {
    "NaN": float("nan"),
    **dict.fromkeys(("+INF", "INF", "+Infinity", "Infinity"), float("inf")),
    **dict.fromkeys(("-INF", "-Infinity"), float("-inf")),
}
_WIDE = Context(prec=2000)
_MODE = "PERMISSIVE"
_TEXTS_OF_TIMES = 8_192
"""Number of texts whose time is remembered."""
_LONG_DIGITS = 20
"""Digits of a decimal that holds every bigint."""
Reader = Callable[[Json], Any]


class _UnfitError(ValueError):
    """Raised for a value that does not fit its type."""


class _PartError(_UnfitError):
    """Raised for a value of which only a part fits."""

    def __init__(self, value: Any) -> None:
        super().__init__("a part of the value does not fit its type")
        self.value = value


# ---- from_json -------------------------------------------------------------------------------------------------------


def _from_json(site: Site) -> Term:
    declared = site.text_of(1)
    kind = _declared_type(site, declared)
    corrupt = _corrupt_column(site, kind)
    text = as_text(site, site.operands[0])
    fields = pa.struct([field for field in kind if field.name != corrupt]) if corrupt is not None else kind
    read = partial(_read, _reader_of(site, fields), pa.types.is_struct(kind), corrupt)
    one_by_one = partial(by_distinct, read, kind)
    return site.apply(partial(_documents, kind, one_by_one, corrupt), kind, text, nullable=True)


def _documents(kind: pa.DataType, one_by_one: ReadTexts, corrupt: str | None, texts: pa.Array) -> pa.Array:
    return read_documents(texts, kind, one_by_one, corrupt=corrupt)


def _corrupt_column(site: Site, kind: pa.DataType) -> str | None:
    """Return the name of the field for documents that are malformed or do not fit, if an option names it."""
    options = site.options_of(2) if len(site.operands) > 2 else {}  # noqa: PLR2004 - the third operand
    mode = options.pop("mode", _MODE)
    corrupt = options.pop("columnNameOfCorruptRecord", None)
    if options or mode.upper() != _MODE:
        raise site.operands[2].place.type_mistake(
            f"from_json does not have {', '.join(options) or f'the mode {mode}'}",
            fix="use no other options than mode=PERMISSIVE and columnNameOfCorruptRecord",
        )
    if corrupt is None or not pa.types.is_struct(kind) or kind.get_field_index(corrupt) < 0:
        return None
    if kind.field(corrupt).type != types.TEXT:
        raise site.operands[1].place.type_mistake(f"the column {corrupt} must be a string", fix=f"{corrupt} STRING")
    return corrupt


def _declared_type(site: Site, declared: str) -> pa.DataType:
    """Return the type of a schema such as `a INT, b STRING` or `array<int>`; all of its parts may be null."""
    is_type = re.match(r"\s*(struct|array|map)\s*<", declared, re.IGNORECASE) is not None
    where = site.operands[1].place.where
    kind = type_of(declared, where=where) if is_type else pa.struct(list(schema_of(declared, where=where)))
    return _nullable(kind)


def _nullable(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _nullable(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return types.list_of(_nullable(kind.value_type))
    return types.map_of(kind.key_type, _nullable(kind.item_type)) if pa.types.is_map(kind) else kind


def _read(read: Reader, is_struct: bool, corrupt: str | None, text: str) -> Any:
    """Return the value of a document. A malformed struct is one of nulls; other types are null."""
    if not text.strip():
        return None
    mark = {} if corrupt is None else {corrupt: text}
    nothing: Any = mark if is_struct else None
    try:
        value = exact_document(text, control_characters=False)
    except MalformedError:
        return nothing
    try:
        return nothing if value is None else read(value)
    except _PartError as error:
        return error.value | mark if is_struct else None
    except _UnfitError:
        return nothing


def _reader_of(site: Site, kind: pa.DataType) -> Reader:  # noqa: C901, PLR0911 - one return per type
    if pa.types.is_struct(kind):
        return partial(_struct, {field.name: _reader_of(site, field.type) for field in kind})
    if pa.types.is_list(kind):
        return partial(_list, _reader_of(site, kind.value_type))
    if pa.types.is_map(kind) and kind.key_type == types.TEXT:
        return partial(_map, _reader_of(site, kind.item_type))
    if kind == types.TEXT:
        return _text
    if kind == types.BOOLEAN:
        return _boolean
    if types.is_integer(kind):
        return partial(_integer, _RANGES[kind])
    if types.is_float(kind):
        return _double
    if types.is_decimal(kind):
        return partial(_decimal, kind.precision, kind.scale)
    if kind in (types.DATE, types.TIMESTAMP):
        return partial(_time, kind)
    if kind == types.BINARY:
        return _binary
    raise site.operands[1].place.type_mistake(
        f"from_json does not read {types.type_name(kind)}", fix="read a string, then cast it"
    )


def _struct(fields: dict[str, Reader], value: Json) -> dict[str, Any]:
    inner = _inner(value)
    if not isinstance(inner, JsonObject):
        raise _UnfitError
    row: dict[str, Any] = {}
    is_whole = True
    for name, item in inner:
        if name in fields:
            try:
                row[name] = None if item is None else fields[name](item)
            except _PartError as error:
                row[name], is_whole = error.value, False
            except _UnfitError:
                is_whole = False
    if not is_whole:
        raise _PartError(row)
    return row


def _list(read: Reader, value: Json) -> list[Any]:
    inner = _inner(value)
    if not isinstance(inner, list):
        raise _UnfitError
    items, is_whole = [], True
    for item in inner:
        try:
            items.append(None if item is None else read(item))
        except _PartError as error:
            items.append(error.value)
            is_whole = False
    if not is_whole:
        raise _PartError(items)
    return items


def _map(read: Reader, value: Json) -> list[tuple[str, Any]]:
    inner = _inner(value)
    if not isinstance(inner, JsonObject):
        raise _UnfitError
    entries: dict[str, Any] = {}
    is_whole = True
    for name, item in inner:
        try:
            entries[storable(name)] = None if item is None else read(item)
        except _PartError as error:
            entries[storable(name)], is_whole = error.value, False
    if not is_whole:
        raise _PartError(list(entries.items()))
    return list(entries.items())


def _inner(value: Json) -> Json:
    return value.value if isinstance(value, Written) else value


def _text(value: Json) -> str:
    """Return a text, or another value as JSON without spaces."""
    return storable(value if isinstance(value, str) else written(plain(value), java_double))


def _boolean(value: Json) -> bool:
    if not isinstance(value, bool):
        raise _UnfitError
    return value


def _integer(bits: int, value: Json) -> int:
    number = _inner(value)
    if isinstance(number, bool) or not isinstance(number, int) or not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise _UnfitError
    return number


def _double(value: Json) -> float:
    number = _inner(value)
    if isinstance(number, str) and number in _NOT_FINITE:
        return _NOT_FINITE[number]
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise _UnfitError
    return float(number)


def _decimal(precision: int, scale: int, value: Json) -> Decimal | None:
    inner = _inner(value)
    if isinstance(inner, bool) or not isinstance(inner, int | float | str):
        raise _UnfitError
    try:
        number = Decimal(inner if isinstance(inner, str) else value.text)
        rounded = number.quantize(Decimal(1).scaleb(-scale), rounding="ROUND_HALF_UP", context=_WIDE)
    except ArithmeticError as error:
        raise _UnfitError from error
    return rounded if abs(rounded) < Decimal(10) ** (precision - scale) else None


def _time(kind: pa.DataType, value: Json) -> Any:
    number = _inner(value)
    if kind == types.TIMESTAMP and isinstance(number, int) and not isinstance(number, bool):
        # Spark multiplies 64-bit numbers, which wrap around.
        wrapped = (_integer(64, number) * 1_000_000 + (1 << 63)) % (1 << 64) - (1 << 63)
        return pa.scalar(wrapped, kind)
    if not isinstance(value, str):
        raise _UnfitError
    return _time_of(kind, value)


@lru_cache(maxsize=_TEXTS_OF_TIMES)
def _time_of(kind: pa.DataType, text: str) -> Any:
    conversion = READERS.get(kind)
    assert conversion is not None, kind
    inner, bad = conversion(pa.array([text]), kind)
    if bad is not None and bad[0].as_py():
        raise _UnfitError
    return inner[0]


def _binary(value: Json) -> bytes:
    if not isinstance(value, str):
        raise _UnfitError
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise _UnfitError from error


# ---- to_json ---------------------------------------------------------------------------------------------------------


def _to_json(site: Site) -> Term:
    operand = site.operands[0]
    kind = operand.type
    if not (pa.types.is_struct(kind) or pa.types.is_list(kind) or pa.types.is_map(kind)):
        raise site.wrong_types("a struct, an array or a map")
    _check_writable(site, kind)
    return site.apply(_json_texts, types.TEXT, operand)


def _check_writable(site: Site, kind: pa.DataType) -> None:
    inner = list(kind) if pa.types.is_struct(kind) else []
    parts = [field.type for field in inner]
    if pa.types.is_list(kind):
        parts = [kind.value_type]
    if pa.types.is_map(kind):
        parts = [kind.item_type]
        if kind.key_type != types.TEXT and writer(kind.key_type) is None:
            raise site.wrong_types("a map with keys that can be written as text")
    for part in parts:
        _check_writable(site, part)
    if not parts and not inner and kind not in (types.TEXT, types.NULL) and writer(kind) is None:
        raise site.wrong_types("values that can be written as text")


def _json_texts(datum: Datum) -> pa.Array:
    return _texts(arrays(datum)[0])


def _texts(values: pa.Array) -> pa.Array:
    """Return each value as JSON; null for null."""
    kind = values.type
    if pa.types.is_struct(kind):
        return _struct_texts(values)
    if pa.types.is_list(kind):
        items = pc.fill_null(_texts(values.flatten()), "null")
        return _wrapped("[", _joined_lists(values, items), "]", values)
    if pa.types.is_map(kind):
        return _map_texts(values)
    return _leaf_texts(values)


def _struct_texts(values: pa.Array) -> pa.Array:
    fields = []
    for place, field in enumerate(values.type):
        text = _texts(pc.struct_field(values, place))
        named = joined(pa.scalar(f",{quoted(field.name)}:"), text)
        fields.append(pc.fill_null(named, ""))
    inner = joined(*fields) if fields else pa.repeat(pa.scalar(""), len(values))
    return _wrapped("{", pc.utf8_slice_codeunits(inner, 1), "}", values)


def _map_texts(values: pa.Array) -> pa.Array:
    lists = values.cast(
        pa.list_(pa.struct([pa.field("key", values.type.key_type), pa.field("value", values.type.item_type)]))
    )
    entries = lists.flatten()
    keys, items = pc.struct_field(entries, 0), pc.struct_field(entries, 1)
    names = keys if keys.type == types.TEXT else _plain_texts(keys)
    texts = joined(_quoted(names), pa.scalar(":"), pc.fill_null(_texts(items), "null"))
    return _wrapped("{", _joined_lists(lists, texts), "}", values)


def _joined_lists(lists: pa.Array, items: pa.Array) -> pa.Array:
    """Return the items of each list, separated by commas."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    offsets = np.concatenate([[0], np.cumsum(lengths.to_numpy(zero_copy_only=False))]).astype(np.int32)
    check_size(text_bytes(items) + len(items), len(lists))
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), items), ",")


def _wrapped(opening: str, inner: pa.Array, closing: str, values: pa.Array) -> pa.Array:
    texts = joined(pa.scalar(opening), inner, pa.scalar(closing))
    return pc.if_else(pc.is_valid(values), texts, pa.scalar(None, types.TEXT))


def _leaf_texts(values: pa.Array) -> pa.Array:  # noqa: PLR0911 - one return per type
    kind = values.type
    if kind == types.NULL:
        return pa.nulls(len(values), types.TEXT)
    if kind == types.TEXT:
        return _quoted(values)
    if kind == types.BINARY:
        return by_distinct(lambda content: quoted(base64.b64encode(content).decode()), types.TEXT, values)
    if types.is_decimal(kind):
        return by_distinct(str, types.TEXT, values)
    texts = _plain_texts(values)
    if types.is_float(kind):
        return pc.if_else(pc.match_substring_regex(texts, "[a-z]"), _quoted(texts), texts)
    if kind == types.DATE:
        return _quoted(texts)
    if types.is_timestamp(kind):
        return _quoted(_iso_times(values))
    return texts


def _plain_texts(values: pa.Array) -> pa.Array:
    conversion = writer(values.type)
    assert conversion is not None, values.type
    return conversion(values, types.TEXT)[0]


def _iso_times(values: pa.Array) -> pa.Array:
    """Return times such as 2024-03-10T06:30:00.250Z, with three fractional digits; without a zone for plain times."""
    pattern = f"%Y-%m-%dT%H:%M:%S{'Z' if values.type.tz else ''}"
    whole = pc.cast(pc.floor_temporal(values, unit="millisecond"), types.NAIVE_TIMESTAMP)
    return iso_texts(lambda times: pc.strftime(pc.cast(times, pa.timestamp("ms")), pattern), whole)


def _quoted(texts: pa.Array) -> pa.Array:
    """Return texts in quotes, with quotes, backslashes and control characters escaped."""
    if pc.any(pc.match_substring_regex(texts, r"[\x00-\x1f]")).as_py():
        return by_distinct(quoted, types.TEXT, texts)
    nbytes = text_bytes(texts)
    if not is_small(2 * nbytes):
        escapes = [pc.sum(pc.count_substring(texts, character)).as_py() or 0 for character in '\\"']
        check_size(nbytes + sum(escapes), len(texts))
    escaped = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
    return joined(pa.scalar('"'), escaped, pa.scalar('"'))


# ---- schema_of_json --------------------------------------------------------------------------------------------------


def _schema_of_json(site: Site) -> Term:
    try:
        value = document(site.text_of(0), control_characters=False)
    except MalformedError as error:
        raise site.operands[0].place.mistake(f"schema_of_json: {error}", fix="pass a JSON document") from None
    return constant(site.place, _ddl(value), types.TEXT)


def _ddl(value: Json) -> str:
    kind = _inferred(plain(value))
    return _type_ddl(types.TEXT if kind == types.NULL else kind)


def _inferred(value: Json) -> pa.DataType:  # noqa: PLR0911 - one return per type
    if value is None:
        return types.NULL
    if isinstance(value, bool):
        return types.BOOLEAN
    if isinstance(value, int):
        digits = len(str(abs(value)))
        return types.BIGINT if -(1 << 63) <= value < 1 << 63 else pa.decimal128(min(digits, 38), 0)
    if isinstance(value, float):
        return types.DOUBLE
    if isinstance(value, str):
        return types.TEXT if value else types.NULL
    if isinstance(value, JsonObject):
        fields = sorted(dict(value).items())
        return pa.struct([pa.field(name, _inferred(item)) for name, item in fields])
    merged: pa.DataType = types.NULL
    for item in value:
        merged = _merged(merged, _inferred(item))
    return types.list_of(merged)


def _merged(kind: pa.DataType, other: pa.DataType) -> pa.DataType:  # noqa: PLR0911 - one return per rule
    if kind in (types.NULL, other):
        return other
    if other == types.NULL:
        return kind
    if pa.types.is_struct(kind) and pa.types.is_struct(other):
        fields = {field.name: field.type for field in kind}
        for field in other:
            fields[field.name] = _merged(fields.get(field.name, types.NULL), field.type)
        return pa.struct([pa.field(name, fields[name]) for name in sorted(fields)])
    if pa.types.is_list(kind) and pa.types.is_list(other):
        return types.list_of(_merged(kind.value_type, other.value_type))
    if types.DOUBLE in (kind, other) and types.is_number(kind) and types.is_number(other):
        return types.DOUBLE
    if types.is_number(kind) and types.is_number(other):
        digits = [number.precision if types.is_decimal(number) else _LONG_DIGITS for number in (kind, other)]
        return pa.decimal128(max(digits), 0)
    return types.TEXT


def _type_ddl(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind):
        fields = (f"{_name_ddl(field.name)}: {_type_ddl(field.type)}" for field in kind)
        return f"STRUCT<{', '.join(fields)}>"
    if pa.types.is_list(kind):
        return f"ARRAY<{_type_ddl(kind.value_type)}>"
    return "STRING" if kind in (types.TEXT, types.NULL) else types.type_name(kind).upper()


def _name_ddl(name: str) -> str:
    return name if _BARE.fullmatch(name) else "`" + name.replace("`", "``") + "`"


BUILDERS: dict[str, Builder] = {
    "from_json": of(_from_json, 2, 3),
    "to_json": of(_to_json, 1),
    "schema_of_json": of(_schema_of_json, 1),
}
