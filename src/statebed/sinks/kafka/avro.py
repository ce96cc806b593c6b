"""Rows as Avro: the schema of a stream, and its rows in Avro's binary encoding.

Every column is optional in the schema. Decimals, dates and timestamps use Avro's logical types.
"""

import io
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pyarrow as pa

from statebed.errors import InputError, MissingDependencyError, UnsupportedTypeError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAGIC = b"\0"
"""First byte of a message in Confluent's wire format; four bytes with the schema's id follow."""


def avro_schema(columns: pa.Schema, *, name: str = "row") -> dict[str, Any]:
    """Return the Avro schema of rows with these columns; raise UnsupportedTypeError if a type has no counterpart.

    >>> avro_schema(pa.schema([("n", pa.int64())]))["fields"]
    [{'name': 'n', 'type': ['null', 'long'], 'default': None}]
    """
    return {"type": "record", "name": name, "fields": [_field(field, name) for field in columns]}


class AvroEncoder:
    """Encodes rows with one schema; with a schema id, in the wire format of Confluent's schema registry."""

    def __init__(self, columns: pa.Schema, *, name: str, schema_id: int | None) -> None:
        self._fastavro = _driver()
        self._schema = self._fastavro.parse_schema(avro_schema(columns, name=name))
        self._prefix = b"" if schema_id is None else _MAGIC + schema_id.to_bytes(4, "big")

    def encode(self, rows: pa.Table) -> Iterator[bytes]:
        """Yield each row in Avro's binary encoding."""
        write, schema, prefix = self._fastavro.schemaless_writer, self._schema, self._prefix
        for row in rows.to_pylist():
            buffer = io.BytesIO(prefix)
            buffer.seek(len(prefix))
            write(buffer, schema, row)
            yield buffer.getvalue()


def _field(field: pa.Field, path: str) -> dict[str, Any]:
    if not _NAME.fullmatch(field.name):
        raise InputError(
            f"Avro does not allow the column name {field.name!r}",
            fix="rename it with select(...): letters, digits and underscores, not starting with a digit",
        )
    return {"name": field.name, "type": ["null", _type(field.type, f"{path}_{field.name}")], "default": None}


def _type(kind: pa.DataType, path: str) -> str | dict[str, Any]:  # noqa: C901, PLR0911 - one case per type
    types = pa.types
    if types.is_boolean(kind):
        return "boolean"
    if types.is_integer(kind) and kind != pa.uint64():
        return "int" if kind.bit_width < 32 or kind == pa.int32() else "long"  # noqa: PLR2004 - bits
    if types.is_float32(kind):
        return "float"
    if types.is_float64(kind):
        return "double"
    if types.is_string(kind) or types.is_large_string(kind):
        return "string"
    if types.is_binary(kind) or types.is_large_binary(kind):
        return "bytes"
    if types.is_decimal(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if types.is_date32(kind):
        return {"type": "int", "logicalType": "date"}
    if types.is_timestamp(kind) and kind.unit in {"us", "ms", "s"}:
        return {"type": "long", "logicalType": "timestamp-micros" if kind.tz else "local-timestamp-micros"}
    if types.is_struct(kind):
        fields = [_field(kind.field(place), path) for place in range(kind.num_fields)]
        return {"type": "record", "name": path, "fields": fields}
    if types.is_list(kind) or types.is_large_list(kind):
        return {"type": "array", "items": ["null", _type(kind.value_type, f"{path}_item")]}
    raise UnsupportedTypeError(
        f"Avro has no counterpart for the type {kind}",
        where=f"column {path.partition('_')[2]}",
        fix="cast the column with select(...), or use value='json'",
    )


def _driver() -> ModuleType:
    try:
        import fastavro  # noqa: PLC0415 - an extra
    except ImportError:
        raise MissingDependencyError(
            "value='avro' needs the package fastavro", fix="pip install 'statebed[kafka]'"
        ) from None
    return fastavro
