"""Spark's types as Arrow's, at any depth: instants are UTC whatever the session's time zone."""

import inspect
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
from pyspark.sql.types import DataType, StructType

_ZONE: dict[str, Any] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_type).parameters else {}
"""Since 4.2 Spark asks for the zone of timestamps, also of those in structs, arrays and maps; 4.1 always takes UTC."""


def arrow_type(kind: DataType) -> pa.DataType:
    """Return the Arrow type of a Spark type."""
    return to_arrow_type(kind, **_ZONE)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of a Spark schema."""
    return to_arrow_schema(schema, **_ZONE)
