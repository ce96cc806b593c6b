"""Null structs whose fields may not be null: stored and read back, while nulls that are wrong stay refused."""

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from statebed.arrays.null_structs import without_hidden_nulls


def required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


POINT = pa.struct([required("x", pa.int64()), required("name", pa.string()), pa.field("note", pa.bool_())])
HERE: dict[str, Any] = {"x": 1, "name": "here", "note": None}
THERE: dict[str, Any] = {"x": 2, "name": "there", "note": True}
CASES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "struct": (POINT, [HERE, THERE]),
    "struct in struct": (pa.struct([required("p", POINT)]), [{"p": HERE}, {"p": THERE}]),
    "struct that may be null in struct": (pa.struct([("p", POINT)]), [{"p": HERE}, {"p": None}]),
    "lists in struct": (pa.struct([required("p", pa.list_(POINT))]), [{"p": [HERE, THERE]}, {"p": []}]),
    "list": (pa.list_(POINT), [[HERE, None], [THERE]]),
    "large list": (pa.large_list(required("element", POINT)), [[HERE], []]),
    "list of two": (pa.list_(required("element", POINT), 2), [[HERE, THERE], [THERE, HERE]]),
    "map": (pa.map_(pa.string(), POINT), [[("a", HERE)], [("b", None), ("c", THERE)]]),
    "map in struct": (pa.struct([required("p", pa.map_(pa.string(), POINT))]), [{"p": [("a", HERE)]}, {"p": []}]),
}


def stored(array: pa.Array) -> pa.ChunkedArray:
    rows = without_hidden_nulls(pa.Table.from_arrays([array], schema=pa.schema([("value", array.type)])))
    file = io.BytesIO()
    pq.write_table(rows, file)
    return pq.read_table(file)["value"]


@pytest.mark.parametrize("name", CASES)
def test_nulls_are_read_as_they_were_written(name: str) -> None:
    kind, values = CASES[name]
    array = pa.array(values, kind).take(pa.array([0, None, 1, None, 0]))
    expected = array.to_pylist()
    for some, start in ((array, 0), (array.slice(1), 1), (array.slice(2, 2), 2)):
        found = stored(some)
        assert found.to_pylist() == expected[start : start + len(some)]
        assert found.type.equals(kind)
    assert stored(pa.nulls(3, kind)).to_pylist() == [None, None, None]


def test_a_null_in_a_struct_that_is_there_is_refused() -> None:
    wrong = pa.StructArray.from_arrays([pa.array([1, None])], fields=[required("x", pa.int64())])
    with pytest.raises(pa.ArrowInvalid, match="non-nullable"):
        stored(wrong)


def test_other_columns_are_left_as_they_are() -> None:
    rows = pa.table({"number": [1, None], "plain": [{"a": 1}, None], "names": [["a"], None]})
    assert without_hidden_nulls(rows) is rows
