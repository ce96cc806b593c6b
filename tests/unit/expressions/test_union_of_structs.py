"""Expressions read columns of a union, in which one of the streams has no nulls where others have."""

import pyarrow as pa

from statebed.expressions import bind


def test_a_struct_without_nulls_is_read_as_one_that_may_have_them() -> None:
    span = pa.struct([pa.field("start", pa.int64()), pa.field("end", pa.int64())])
    strict = pa.struct([pa.field("start", pa.int64(), nullable=False), pa.field("end", pa.int64(), nullable=False)])
    expression = bind("window.end + 1", pa.schema([pa.field("window", span)]), where="test")
    rows = pa.table({"window": pa.array([{"start": 1, "end": 2}], strict)})
    assert expression.evaluate(rows).to_pylist() == [3]
