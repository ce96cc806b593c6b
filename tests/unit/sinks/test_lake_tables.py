"""Lakehouse tables: what other readers find in them, and what becomes of them when processes die or others write."""

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import deltalake
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from effort import diagonals
from lake_tables import Lake
from published import NOT_UTF8, publication
from pyiceberg.io.pyarrow import PyArrowFile

from statebed.errors import FencedError, InputError, LostWriteError, RollbackError, SinkError, UnsupportedTypeError
from statebed.format.stream_schema import WEIGHT
from statebed.protocol import SinkPosition
from statebed.sinks.lake import LakeSink, LakeTable, lake_sink
from statebed.storage import LocalStore
from statebed.testing.faults import Damage, SimulatedCrash, cut_to, flip_byte

COLUMNS = pa.schema([("k", pa.string()), ("n", pa.int64())])
EVERY_TYPE = pa.schema(
    [
        ("tiny", pa.int8()),
        ("small", pa.int16()),
        ("int", pa.int32()),
        ("long", pa.int64()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("flag", pa.bool_()),
        ("exact", pa.decimal128(20, 3)),
        ("text", pa.string()),
        ("bytes", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("items", pa.list_(pa.int64())),
        ("pair", pa.struct([("a", pa.int64()), ("b", pa.string())])),
        ("map", pa.map_(pa.string(), pa.float64())),
    ]
)


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # its own planner is another package
    return Lake(request.param, tmp_path / "table")


@pytest.fixture
def delta(tmp_path: Path) -> Lake:
    return Lake("delta", tmp_path / "table")


def rows(*values: tuple[Any, ...], columns: pa.Schema = COLUMNS) -> pa.Table:
    return pa.table([list(column) for column in zip(*values, strict=True)], schema=columns)


def changed(*values: tuple[Any, ...]) -> pa.Table:
    return rows(*values, columns=pa.schema([*COLUMNS, pa.field(WEIGHT, pa.int64(), nullable=False)]))


def test_outbox_files_become_files_of_the_table_byte_by_byte(lake: Lake) -> None:
    sink = lake.sink(COLUMNS)
    assert sink.open(1) is None
    given = publication(1, 2, rows(("a", 1)), rows(("b", 2)))
    sink.publish(given)
    sink.publish(given)
    stored = {path.read_bytes() for path in lake.stored()}
    assert stored == {given.read(file) for file in given.files}
    assert lake.rows() == [("a", 1), ("b", 2)]
    assert sink.peek() == SinkPosition(run=1, epoch=2)


def test_every_type_reads_back_in_other_readers(lake: Lake) -> None:
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=dt.UTC)
    numbers = (1, 2, 3, 4, 0.5, 0.25, True, 12)
    times = (at.date(), at, at.replace(tzinfo=None))
    values = (*numbers, "é", b"\0", *times, [1, None], {"a": 1, "b": None}, [("x", 1.0)])
    table = rows(values, (None,) * len(values), columns=EVERY_TYPE)
    sink = lake.sink(EVERY_TYPE)
    sink.open(1)
    sink.publish(publication(1, 2, table))
    assert lake.read().cast(EVERY_TYPE).equals(table)
    read = lake.scan().select(pl.exclude("map")).collect()
    assert read.row(0)[:13] == (*values[:7], pytest.approx(12), *values[8:13])


@pytest.mark.parametrize(
    "kind", [pa.uint32(), pa.duration("us"), pa.time64("us"), pa.timestamp("ns"), pa.list_(pa.uint8())]
)
def test_a_type_that_the_format_lacks_is_refused_by_name(lake: Lake, kind: pa.DataType) -> None:
    with pytest.raises(UnsupportedTypeError, match=r"has no type for the column odd"):
        lake.sink(pa.schema([("odd", kind)]))


def test_bounds_of_files_let_readers_skip_them(lake: Lake) -> None:
    sink = lake.sink(COLUMNS)
    sink.open(1)
    sink.publish(publication(1, 2, rows(("a", 1), ("b", 5)), rows(("x", 7), (None, 9))))
    version = sink._table.current("rides/out")
    assert version is not None
    bounds = [file.bounds for file in sink._table.files(version)]
    assert sorted(pair["n"] for pair in bounds) == [(1, 5), (7, 9)]
    assert sorted(pair["k"] for pair in bounds) == [("a", "b"), ("x", "x")]
    assert lake.scan().filter(pl.col("n") > 6).collect().height == 2


def test_a_key_keeps_one_row_and_null_is_a_key(lake: Lake) -> None:
    sink = lake.sink(COLUMNS, key="k", changes=True)
    sink.open(1)
    sink.publish(publication(1, 2, changed(("a", 1, 1), ("b", 2, 1)), changed((None, 3, 1))))
    sink.publish(publication(1, 3, changed(("a", 1, -1), ("a", 10, 1), ("b", 2, -1), (None, 3, -1), (None, 4, 1))))
    assert lake.rows() == [("a", 10), (None, 4)]
    sink.publish(publication(1, 4, changed(("a", 10, -1), (None, 4, -1))))
    assert lake.rows() == []
    sink.publish(publication(1, 5, changed(("c", 1, 1), ("c", 1, -1))))
    assert sink.peek() == SinkPosition(run=1, epoch=5)


def test_a_key_that_is_not_unique_is_an_error_and_nothing_is_written(lake: Lake) -> None:
    sink = lake.sink(COLUMNS, key="k", changes=True)
    sink.open(1)
    with pytest.raises(SinkError, match=r"epoch 2 has 2 rows with the key \{'k': 'a'\}"):
        sink.publish(publication(1, 2, changed(("a", 1, 1), ("a", 2, 1))))
    assert lake.rows() == []


def test_files_without_a_changed_key_are_left_alone(lake: Lake) -> None:
    sink = lake.sink(COLUMNS, key="n", changes=True)
    sink.open(1)
    for epoch, numbers in enumerate((range(10), range(10, 20), range(20, 30)), start=2):
        sink.publish(publication(1, epoch, changed(*((f"k{n}", n, 1) for n in numbers))))
    before = lake.stored()
    sink.publish(publication(1, 5, changed(("k15", 15, -1), ("new", 15, 1))))
    assert len(lake.listed() & before) == 2
    assert len(lake.rows()) == 30


def test_partitions_and_sort_order_are_those_that_were_asked_for(lake: Lake) -> None:
    columns = pa.schema([*COLUMNS, ("p", pa.string())])
    sink = lake.sink(columns, partition_by="p", sort_by="n")
    sink.open(1)
    values = [("a", 3, "x"), ("b", 1, "x"), ("c", 2, "y z/%"), ("d", 4, None)]
    sink.publish(publication(1, 2, rows(*values, columns=columns)))
    assert sorted(lake.rows(), key=repr) == sorted(values, key=repr)
    assert sorted(lake.scan().collect().rows(), key=repr) == sorted(values, key=repr)
    numbers = [pq.ParquetFile(file).read()["n"].to_pylist() for file in lake.stored()]
    assert sorted(numbers) == [[1, 3], [2], [4]]
    if lake.format == "delta":
        with pytest.raises(SinkError, match="an empty text in the partition column p"):
            sink.publish(publication(1, 3, rows(("e", 1, ""), columns=columns)))
    with pytest.raises(InputError, match=r"it is partitioned by \['p'\], not by \['k'\]"):
        lake.sink(columns, partition_by="k").peek()


def test_forms_and_the_epoch_are_columns(lake: Lake) -> None:
    sink = lake.sink(COLUMNS, key="k", changes=True, form="row_kind", epoch_column="epoch")
    sink.open(1)
    sink.publish(publication(1, 2, changed(("a", 1, 1))))
    sink.publish(publication(1, 3, changed(("a", 1, -1), ("a", 2, 1))))
    assert lake.rows() == [
        ("a", 1, "insert", 2),
        ("a", 1, "update_before", 3),
        ("a", 2, "update_after", 3),
    ]


def test_columns_follow_the_job(lake: Lake) -> None:
    sink = lake.sink(COLUMNS)
    sink.open(1)
    sink.publish(publication(1, 2, rows(("a", 1))))
    wider = pa.schema([*COLUMNS, ("m", pa.float64())])
    sink = lake.sink(wider)
    sink.open(3)
    sink.publish(publication(3, 4, rows(("b", 2, 0.5), columns=wider)))
    assert lake.rows() == [("a", 1, None), ("b", 2, 0.5)]
    narrower = pa.schema([("k", pa.string()), ("m", pa.float64())])
    sink = lake.sink(narrower)
    sink.open(5)
    sink.publish(publication(5, 6, rows(("c", 1.5), columns=narrower)))
    assert lake.rows() == [("a", 1, None), ("b", 2, 0.5), ("c", None, 1.5)]
    with pytest.raises(InputError, match="k is int64, but the table's column is string"):
        lake.sink(pa.schema([("k", pa.int64())])).peek()


def test_small_files_are_merged_and_rows_stay(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_sink, "COMPACT_EVERY", 8)
    monkeypatch.setattr(lake_sink, "COMPACTED_FILES", 4)
    sink = lake.sink(COLUMNS)
    sink.open(1)
    for epoch in range(2, 22):
        sink.publish(publication(1, epoch, rows((f"k{epoch}", epoch))))
    assert len(lake.listed()) <= 8
    assert len(lake.rows()) == 20
    assert sink.peek() == SinkPosition(run=1, epoch=21)
    sink = lake.sink(COLUMNS, compact=False)
    sink.open(22)
    sink.roll_back(22, 10)
    assert len(lake.rows()) == 9


def test_a_file_that_was_removed_makes_a_rollback_impossible_and_changes_nothing(lake: Lake) -> None:
    sink = lake.sink(COLUMNS, key="k", changes=True)
    sink.open(1)
    sink.publish(publication(1, 2, changed(("a", 1, 1))))
    old = lake.stored()
    sink.publish(publication(1, 3, changed(("a", 1, -1), ("a", 2, 1))))
    old.pop().unlink()
    sink = lake.sink(COLUMNS, key="k", changes=True)
    sink.open(4)
    with pytest.raises(RollbackError, match="cannot be rolled back to 2: 1 of its files were deleted"):
        sink.roll_back(4, 2)
    assert lake.rows() == [("a", 2)]


def test_an_older_run_is_refused_and_another_job_is_named(lake: Lake) -> None:
    old, new = lake.sink(COLUMNS), lake.sink(COLUMNS)
    old.open(1)
    new.open(2)
    refused: list[Callable[[], Any]] = [
        lambda: old.publish(publication(1, 3, rows(("a", 1)))),
        lambda: old.roll_back(1, 0),
        lambda: old.open(2),
    ]
    for step in refused:
        with pytest.raises(FencedError):
            step()
    with pytest.raises(InputError, match="the table belongs to rides/out, not to other/out"):
        lake.sink(COLUMNS, job_id="other").peek()
    assert new.owner_of_target() == "rides/out"
    with pytest.raises(InputError, match="the job's log ends at 1"):
        new.check(last_number=1)
    assert lake.rows() == []


@pytest.mark.parametrize("damage", [cut_to(100), flip_byte(8)], ids=["cut", "flipped"])
@pytest.mark.parametrize("key", ["", "k"])
def test_p1_a_file_that_the_store_spoils_is_not_committed(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, damage: Damage, key: str
) -> None:
    """Files of rows, and those that a changed row makes the sink write again."""
    sink = lake.sink(COLUMNS, changes=True, key=key)
    sink.open(1)
    sink.publish(publication(1, 2, changed(("a", 1, 1))))
    before = lake.rows()
    with monkeypatch.context() as patch:
        if lake.format == "delta":
            patch.setattr(LocalStore, "put", lambda store, path, data: PUT(store, path, damage(data)))
        else:
            patch.setattr(PyArrowFile, "create", lambda file, **more: SpoilingStream(CREATE(file, **more), damage))
        with pytest.raises(LostWriteError) as lost:
            sink.publish(publication(1, 3, changed(("a", 1, -1), ("a", 2, 1))))
    assert ".parquet" in lost.value.where
    assert lake.rows() == before
    again = lake.sink(COLUMNS, changes=True, key=key)
    assert again.open(2) == SinkPosition(run=1, epoch=2)
    again.publish(publication(2, 3, changed(("a", 1, -1), ("a", 2, 1))))
    assert len(lake.rows()) == len(before) + (0 if key else 2)


PUT, CREATE = LocalStore.put, PyArrowFile.create


class SpoilingStream:
    """A stream that writes other bytes than it is given."""

    def __init__(self, stream: Any, damage: Damage) -> None:
        self._stream, self._damage = stream, damage

    def write(self, data: bytes) -> None:
        self._stream.write(self._damage(data))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()


STEPS = ("create", "claim", "evolve", "write", "commit")


@pytest.mark.parametrize(("key", "after"), diagonals(["", "k"], [False, True]))
def test_p2_a_death_at_each_step_of_a_publication_repeats_and_loses_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, key: str, *, after: bool
) -> None:
    """The process dies at its n-th step, for each n; then a new run publishes what the table lacks."""
    sink: LakeSink = lake.sink(COLUMNS, changes=True, key=key)
    table = type(sink._table)
    epochs = {2: changed(("a", 1, 1)), 3: changed(("a", 1, -1), ("a", 2, 1), ("b", 1, 1)), 4: changed(("b", 1, -1))}

    def life(run: int) -> None:
        sink: LakeSink = lake.sink(COLUMNS, changes=True, key=key)
        before = sink.open(run)
        for epoch, change in epochs.items():
            if before is None or epoch > before.epoch:
                sink.publish(publication(run, epoch, change))

    deaths = 0
    for last in range(1, 40):
        calls = 0

        def deadly(step: Any, last: int = last) -> Any:
            def called(*values: Any, **named: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls == last and not after:
                    raise SimulatedCrash
                done = step(*values, **named)
                if calls == last:
                    raise SimulatedCrash
                return done

            return called

        with monkeypatch.context() as patch:
            for name in STEPS:
                patch.setattr(table, name, deadly(getattr(table, name)))
            try:
                life(10 * last)
            except SimulatedCrash:
                deaths += 1
        life(10 * last + 1)
        net: dict[tuple[Any, ...], int] = {}
        for row in lake.rows():
            net[row[:2]] = net.get(row[:2], 0) + (row[2] if len(row) > 2 else 1)
        assert {row for row, weight in net.items() if weight} == {("a", 2)}
        assert set(net.values()) <= {0, 1}
        if calls < last:
            break
        lake.sink(COLUMNS, changes=True, key=key).clear(10 * last + 1)
    assert deaths > 5


def test_p3_a_run_that_looked_before_it_was_superseded_cannot_commit(lake: Lake, monkeypatch: Any) -> None:
    old = lake.sink(COLUMNS)
    old.open(1)
    table: LakeTable = old._table
    step = type(table).commit

    def superseded(*values: Any, **named: Any) -> bool:
        monkeypatch.undo()
        lake.sink(COLUMNS).open(2)
        return step(*values, **named)

    monkeypatch.setattr(type(table), "commit", superseded)
    with pytest.raises(FencedError):
        old.publish(publication(1, 3, rows(("a", 1))))
    assert lake.rows() == []


def test_a_commit_of_somebody_else_in_between_is_not_lost(lake: Lake, monkeypatch: Any) -> None:
    sink = lake.sink(COLUMNS)
    sink.open(1)
    step = type(sink._table).commit

    def beside(*values: Any, **named: Any) -> Any:
        monkeypatch.undo()
        lake.append(rows(("theirs", 0)))
        return step(*values, **named)

    monkeypatch.setattr(type(sink._table), "commit", beside)
    sink.publish(publication(1, 2, rows(("ours", 1))))
    assert lake.rows() == [("ours", 1), ("theirs", 0)]


def test_a_table_that_disappears_stops_the_job_by_name(lake: Lake) -> None:
    sink = lake.sink(COLUMNS)
    sink.open(1)
    lake.path.rename(lake.path.with_name("away"))
    with pytest.raises(SinkError, match="the table no longer exists"):
        sink.publish(publication(1, 2, rows(("a", 1))))
    assert not lake.path.exists()


def test_a_delta_table_of_sparks_writer_goes_on_from_its_transaction(delta: Lake) -> None:
    """Spark's own writer stores the epoch under the same id, and no run."""
    deltalake.write_deltalake(
        str(delta.path),
        rows(("a", 1)),
        commit_properties=deltalake.CommitProperties(app_transactions=[deltalake.Transaction("rides/out", 7)]),
    )
    sink = delta.sink(COLUMNS)
    assert sink.peek() == SinkPosition(run=0, epoch=7)
    assert sink.open(9) == SinkPosition(run=0, epoch=7)
    sink.publish(publication(9, 7, rows(("a", 1))))
    sink.publish(publication(9, 10, rows(("b", 2))))
    assert delta.rows() == [("a", 1), ("b", 2)]


def test_a_delta_table_with_features_that_files_do_not_show_is_refused(delta: Lake) -> None:
    path = str(delta.path)
    table = deltalake.DeltaTable.create(path, COLUMNS, configuration={"delta.enableChangeDataFeed": "true"})
    assert delta.sink(COLUMNS).peek() is None
    with pytest.raises(InputError, match="it uses the feature changeDataFeed"):
        delta.sink(COLUMNS, key="k").peek()
    table.alter.add_constraint({"positive": "n > 0"})
    with pytest.raises(InputError, match="it uses the feature checkConstraints"):
        delta.sink(COLUMNS).peek()


def test_outbox_files_have_only_encodings_that_all_supported_sparks_read(lake: Lake) -> None:
    """Spark 4.1 stopped at BYTE_STREAM_SPLIT in any of them, with "Unsupported encoding"."""
    sink = lake.sink(EVERY_TYPE)
    sink.open(1)
    sink.publish(publication(1, 2, EVERY_TYPE.empty_table(), pa.table([[None]] * len(EVERY_TYPE), schema=EVERY_TYPE)))
    found = set()
    for file in lake.stored():
        metadata = pq.ParquetFile(file).metadata
        for group in range(metadata.num_row_groups):
            found |= {
                one
                for column in range(metadata.num_columns)
                for one in metadata.row_group(group).column(column).encodings
            }
    assert found <= {"PLAIN", "RLE", "RLE_DICTIONARY", "PLAIN_DICTIONARY", "DELTA_BINARY_PACKED"}


def test_an_epoch_that_is_skipped_advances_the_position_and_changes_no_row(lake: Lake) -> None:
    sink = lake.sink(COLUMNS)
    sink.open(1)
    sink.publish(publication(1, 2, rows(("a", 1))))
    for _ in range(2):
        sink.skip(publication(1, 3, rows(("b", 1))))
    assert sink.peek() == SinkPosition(run=1, epoch=3)
    sink.publish(publication(1, 4, rows(("c", 1))))
    assert lake.rows() == [("a", 1), ("c", 1)]


@pytest.mark.parametrize(
    ("first", "second", "problem"),
    [
        ({}, {"changes": True}, "no _weight, which later rows would have"),
        ({"changes": True}, {}, "_weight, which later rows would lack"),
        ({"changes": True}, {"changes": True, "key": "k"}, "_weight, which later rows would lack"),
        ({"changes": True, "key": "k"}, {"changes": True}, "no _weight, which later rows would have"),
        ({}, {"changes": True, "key": "k", "form": "row_kind"}, "no row_kind, which later rows would have"),
    ],
)
def test_p9_a_table_has_no_rows_of_two_forms(
    lake: Lake, first: dict[str, Any], second: dict[str, Any], problem: str
) -> None:
    """A reader that adds up the weights would drop all rows that have none."""
    sink, other = lake.sink(COLUMNS, **first), lake.sink(COLUMNS, **second)
    sink.open(1)
    sink.publish(publication(1, 2, changed(("a", 1, 1)) if first else rows(("a", 1))))
    for refused in (other.peek, lambda: other.open(3)):
        with pytest.raises(InputError, match=f"its rows have {problem}"):
            refused()
    assert lake.rows()[0][:2] == ("a", 1)
    assert sink.peek() == SinkPosition(run=1, epoch=2)


def test_a_row_that_delta_refuses_is_left_out_on_request(delta: Lake) -> None:
    sink = delta.sink(COLUMNS, partition_by=["k"])
    sink.open(1)
    refused = publication(1, 2, rows(("", 1)))
    with pytest.raises(SinkError, match="empty text in the partition column k"):
        sink.publish(refused)
    sink.skip(refused)
    sink.publish(publication(1, 3, rows(("a", 1))))
    assert delta.rows() == [("a", 1)]


FAR = {
    "day": pa.array([10_000_000, -10_000_000], pa.date32()),
    "at": pa.array([1 << 60, -(1 << 60)], pa.timestamp("us", "UTC")),
}


@pytest.mark.parametrize("key", [(), ("n",)])
def test_times_beyond_the_year_9999_are_written_without_bounds_or_named(lake: Lake, key: tuple[str, ...]) -> None:
    """Python's datetime does not have them, and neither do the bounds that the libraries write."""
    far = pa.table({"n": [1, 2], **FAR})
    sink = lake.sink(far.schema, key=key, changes=bool(key))
    sink.open(1)
    weighted = far.append_column(pa.field(WEIGHT, pa.int64(), nullable=False), pa.array([1, 1])) if key else far
    if lake.format == "iceberg":
        with pytest.raises(SinkError, match="the column day that is not in the years 1 to 9999"):
            sink.publish(publication(1, 2, weighted))
        sink.skip(publication(1, 2, weighted))
        return
    sink.publish(publication(1, 2, weighted))
    stored = lake.read().sort_by("n")
    assert stored["day"].cast(pa.int32()).to_pylist() == [10_000_000, -10_000_000]
    assert stored["at"].cast(pa.int64()).to_pylist() == [1 << 60, -(1 << 60)]


def test_a_far_day_that_is_a_partition_is_named(lake: Lake) -> None:
    sink = lake.sink(pa.schema([("n", pa.int64()), ("day", pa.date32())]), partition_by=["day"])
    sink.open(1)
    with pytest.raises(SinkError, match="the column day that is not in the years 1 to 9999") as caught:
        sink.publish(publication(1, 2, pa.table({"n": [1, 2], "day": FAR["day"]})))
    assert not caught.value.is_of_target  # other rows would not fail


@pytest.mark.parametrize("partitioned", [False, True])
def test_text_that_is_not_utf8_is_named(lake: Lake, partitioned: bool) -> None:
    sink = lake.sink(COLUMNS, partition_by=["k"] if partitioned else [])
    sink.open(1)
    with pytest.raises(SinkError, match="the column k that is not UTF-8") as caught:
        sink.publish(publication(1, 2, pa.table({"k": NOT_UTF8, "n": [1, 2]})))
    assert "make_valid_utf8(k)" in caught.value.fix


def test_a_partition_whose_folder_would_have_too_long_a_name_is_named(delta: Lake) -> None:
    sink = delta.sink(COLUMNS, partition_by=["k"])
    sink.open(1)
    sink.publish(publication(1, 2, rows(("x" * 253, 1))))
    with pytest.raises(SinkError, match="a text of 254 characters in the partition column k"):
        sink.publish(publication(1, 3, rows(("x" * 254, 1))))


def test_a_column_whose_name_delta_would_lose_is_refused(delta: Lake) -> None:
    """Readers cut names at NUL, and find no values there."""
    with pytest.raises(InputError, match=r"does not allow the column name 'a\\x00b'"):
        delta.sink(pa.schema([("a\0b", pa.string())]))


@pytest.mark.parametrize(
    ("name", "refused"),
    [("a%41", "delta iceberg"), ("a?b", "iceberg"), ("a#b", "iceberg"), ("a\\b", "delta"), ("a\nb", "delta iceberg")],
)
def test_a_folder_that_a_library_takes_for_another_one_is_refused(tmp_path: Path, name: str, refused: str) -> None:
    """Tables were written to `aA`, `a` and `ab`, and the file of a catalog was overwritten by a table."""
    for product in ("delta", "iceberg"):
        lake = Lake(product, tmp_path / product / name / "table")
        if product in refused.split():
            with pytest.raises(InputError, match="would use another folder"):
                lake.sink(COLUMNS)
            continue
        sink = lake.sink(COLUMNS)
        sink.open(1)
        sink.publish(publication(1, 2, rows(("a", 1))))
        assert lake.rows() == [("a", 1)]
        assert [path.name for path in (tmp_path / product).iterdir()] == [name]


def test_a_catalog_below_a_link_to_itself_is_named(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(SinkError, match="File exists"):
        Lake("iceberg", tmp_path / "loop").sink(COLUMNS).open(1)


@pytest.mark.parametrize("name", ["K", "\N{KELVIN SIGN}"])
def test_columns_whose_names_differ_only_in_case_are_refused(lake: Lake, name: str) -> None:
    """Both columns of an Iceberg table had the values of the first one."""
    with pytest.raises(InputError, match="are the same column for readers"):
        lake.sink(pa.schema([("k", pa.int64()), (name, pa.int64())]))
