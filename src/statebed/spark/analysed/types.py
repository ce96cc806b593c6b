"""Types of analysed plans as Arrow types."""

import pyarrow as pa
from pyspark.sql.types import StructField, _parse_datatype_json_value

from statebed.spark.analysed.plan_tree import Json
from statebed.spark.plan.head_expressions import arrow_field


def arrow_type(kind: Json) -> pa.DataType:
    """Return the Arrow type of a Spark type in JSON; raise InputError if there is none."""
    data_type = _parse_datatype_json_value(kind)
    return arrow_field(StructField("value", data_type), where="query").type


def same_type(kind: pa.DataType, other: pa.DataType) -> bool:
    """Return whether two types hold the same values, whatever the fields inside lists are called or may be null."""
    if pa.types.is_list(kind) and pa.types.is_list(other):
        return same_type(kind.value_type, other.value_type)
    if pa.types.is_struct(kind) and pa.types.is_struct(other):
        ours, theirs = list(kind), list(other)
        return [each.name for each in ours] == [each.name for each in theirs] and all(
            same_type(a.type, b.type) for a, b in zip(ours, theirs, strict=True)
        )
    if pa.types.is_map(kind) and pa.types.is_map(other):
        return same_type(kind.key_type, other.key_type) and same_type(kind.item_type, other.item_type)
    return bool(kind == other)
