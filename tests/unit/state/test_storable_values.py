"""Values that files cannot hold are refused by both kinds of tables before anything is taken."""

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from statebed.errors import InputError
from statebed.format.ranges import WHOLE_SPACE
from statebed.format.schema import TIMESTAMP
from statebed.state import KeyedView, TimeKeyedView, keyed_table_config, timestamp_table_config
from statebed.storage import MemoryStore

DAY = 86_400_000
SECONDS, DATE = pa.timestamp("s"), pa.date64()
LAST_SECOND = ((1 << 63) - 1) // 1000
LAST_DAY = ((1 << 31) - 1) * DAY
CASES = [
    pytest.param(SECONDS, [LAST_SECOND, -LAST_SECOND, 0], [LAST_SECOND + 1, -LAST_SECOND - 1, -(1 << 63)], id="s"),
    pytest.param(DATE, [LAST_DAY, -LAST_DAY, 0], [LAST_DAY + DAY, 1, -1, DAY // 2, -(1 << 62)], id="date64"),
]
SHAPES = ["key", "value", "struct", "list", "null struct"]


def numbers(values: list[int], kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.array(values, dtype=np.int64))])


def shaped(shape: str, values: list[int], kind: pa.DataType) -> pa.Array:
    array = numbers(values, kind)
    match shape:
        case "struct":
            return pa.StructArray.from_arrays([array], ["part"])
        case "list":
            return pa.ListArray.from_arrays(pa.array(range(len(values) + 1), pa.int32()), array)
        case "null struct":
            parts = pa.StructArray.from_arrays([array], ["part"]).cast(pa.struct([("part", kind)]))
            return pa.concat_arrays([parts, pa.nulls(1, parts.type)])
    return array


class Tables:
    """A table of each kind, with such a column as its key or its value."""

    def __init__(self, column: pa.DataType, shape: str) -> None:
        schema = pa.schema([("a", column), ("b", pa.int64())])
        self.key, self.value = ("a", "b") if shape == "key" else ("b", "a")
        self.store = MemoryStore()
        self.timed = timestamp_table_config("timed", "", dt.timedelta(days=1), False, schema, keys=[self.key])
        self.keyed = keyed_table_config("keyed", "", [self.key], schema)
        self.views = self.opened()

    def opened(self, *parts: Any) -> tuple[KeyedView, TimeKeyedView]:
        keyed, timed = ([part] for part in parts) if parts else ([], [])
        return (
            KeyedView(self.keyed, owned=WHOLE_SPACE, store=self.store, parts=keyed),
            TimeKeyedView(self.timed, owned=WHOLE_SPACE, store=self.store, parts=timed),
        )

    def upsert(self, rows: pa.Table) -> None:
        self.views[0].upsert(rows.select([self.key]), rows.select([self.value]))

    def append(self, rows: pa.Table) -> None:
        self.views[1].append(rows.add_column(1, "_time", pa.array([0] * rows.num_rows, TIMESTAMP)))

    def restored(self) -> tuple[KeyedView, TimeKeyedView]:
        keyed, timed = self.views
        for upload in (*keyed.checkpoint(str).uploads, *timed.checkpoint(lambda digest: f"t-{digest}")):
            self.store.put(upload.path, upload.content())
            upload.on_stored()
        return self.opened(keyed.metadata(), timed.metadata())


def rows_of(a: pa.Array) -> pa.Table:
    return pa.table({"a": a, "b": pa.array(range(len(a)), pa.int64())})


def column_a(rows: pa.Table) -> pa.Array:
    return pa.concat_arrays(rows.sort_by("b")["a"].chunks)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("kind", "good", "bad"), CASES)
def test_values_at_the_ends_are_stored_and_those_beyond_are_refused(
    kind: pa.DataType, good: list[int], bad: list[int], shape: str
) -> None:
    array = shaped(shape, good, kind)
    tables = Tables(array.type, shape)
    tables.upsert(rows_of(array))
    tables.append(rows_of(array))
    for one in bad:
        beyond = rows_of(shaped(shape, [good[0], one], kind))
        for write, where in ((tables.upsert, "table 'keyed'"), (tables.append, "table 'timed'")):
            with pytest.raises(InputError, match="has a value that a file cannot hold") as caught:
                write(beyond)
            assert caught.value.where == where
    keyed, timed = tables.restored()
    assert column_a(pa.concat_tables(keyed.scan())).equals(array)
    assert column_a(timed.read()).equals(array)


def test_what_stands_under_a_null_is_no_value() -> None:
    hidden = pa.Array.from_buffers(
        DATE, 2, [pa.py_buffer(np.array([1], dtype=np.uint8)), pa.py_buffer(np.array([0, 5], dtype=np.int64))]
    )
    tables = Tables(DATE, "value")
    tables.upsert(rows_of(hidden))
    tables.append(rows_of(hidden))
    assert [column_a(rows).null_count for rows in (*tables.restored()[0].scan(), tables.restored()[1].read())] == [1, 1]


REQUIRED = pa.field("part", pa.int64(), nullable=False)
INCOMPLETE = [
    pytest.param(pa.list_(REQUIRED), [[1, 2], [], None], [[1], [2, None]], id="list"),
    pytest.param(pa.list_(REQUIRED, 2), [[1, 2], [3, 4], None], [[1, None]], id="fixed list"),
    pytest.param(pa.struct([REQUIRED]), [{"part": 1}, None], [{"part": None}], id="struct"),
    pytest.param(
        pa.struct([("a", pa.list_(pa.struct([REQUIRED])))]),
        [{"a": [{"part": 1}, None]}, {"a": None}, None],
        [{"a": [{"part": 1}, {"part": None}]}],
        id="deep",
    ),
    pytest.param(
        pa.map_(pa.string(), pa.field("value", pa.struct([REQUIRED]))),
        [[("x", {"part": 1}), ("y", None)], [], None],
        [[("x", {"part": None})]],
        id="map",
    ),
]


@pytest.mark.parametrize(("kind", "good", "bad"), INCOMPLETE)
def test_nulls_in_parts_that_may_not_be_null_are_refused(kind: pa.DataType, good: list[Any], bad: list[Any]) -> None:
    array = pa.array(good, kind)
    tables = Tables(array.type, "value")
    # Sliced, the parts of the rows do not begin where those of the array do.
    for write, where in ((tables.upsert, "table 'keyed'"), (tables.append, "table 'timed'")):
        write(rows_of(pa.array([*bad, *good], kind)).slice(len(bad)))
        with pytest.raises(InputError, match="has nulls in a part that may not be null") as caught:
            write(rows_of(pa.array([*good, *bad], kind)).slice(1))
        assert caught.value.where == where
    keyed, timed = tables.restored()
    assert column_a(pa.concat_tables(keyed.scan())).to_pylist() == good
    assert column_a(timed.read()).to_pylist() == good


def test_values_in_views_of_lists_are_checked() -> None:
    array = pa.array([[0], None, [1, LAST_SECOND]], pa.list_view(SECONDS))
    tables = Tables(array.type, "value")
    tables.append(rows_of(array))
    with pytest.raises(InputError, match="has a value that a file cannot hold"):
        tables.append(rows_of(pa.array([[LAST_SECOND + 1]], array.type)))
    assert tables.views[1].read().num_rows == len(array)


def test_required_items_beside_seconds_come_back() -> None:
    kind = pa.struct([("pair", pa.list_(REQUIRED, 2)), ("at", SECONDS)])
    array = pa.array([{"pair": [1, 2], "at": 5}, {"pair": None, "at": 6}, None], kind)
    tables = Tables(kind, "value")
    tables.upsert(rows_of(array))
    tables.append(rows_of(array))
    keyed, timed = tables.restored()
    assert column_a(pa.concat_tables(keyed.scan())).to_pylist() == array.to_pylist()
    assert column_a(timed.read()).to_pylist() == array.to_pylist()
