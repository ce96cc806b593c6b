"""One subtask: what it reads, writes, reports and refuses."""

import io
import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from statebed.aggregates.functions import count
from statebed.aggregates.functions import sum as sum_of
from statebed.arrays.key_hash import hash_columns
from statebed.errors import CorruptObjectError, InputError, LostWriteError, MissingFileError, SubtaskError
from statebed.format import checkpoint_pb2 as pb
from statebed.format.ranges import owned_range
from statebed.format.sealed import open_sealed
from statebed.operators import WindowAggregate, tumbling
from statebed.state.time_keyed.table import MAX_FILES
from statebed.storage import LocalStore, MemoryStore, ObjectStore
from statebed.subtasks import SubtaskReport, SubtaskTask, run_subtask, subtask
from statebed.testing.faults import Fault, FaultStore, SimulatedCrash, Verb

OPERATOR = WindowAggregate(
    operator_id="rides",
    keys=(pa.field("driver", pa.int64()),),
    window=tumbling("10 us"),
    aggregates=(count().bind("trips"), sum_of("fare").bind("total", input_types=(pa.float64(),))),
)
TASK = SubtaskTask(
    job_id="job",
    epoch=1,
    operator=OPERATOR,
    subtask_index=0,
    parallelism=1,
    base=(),
    late_us=None,
    watermark_us=None,
    epoch_time_us=0,
)
ROWS = [(1, 5, 0.1), (1, 6, 0.2), (2, 15, 0.3), (2, None, 1.0)]


def batch(rows: Sequence[tuple[int, int | None, float | None]]) -> pa.RecordBatch:
    keys, times, fares = zip(*rows, strict=True) if rows else ((), (), ())
    hashes = hash_columns([pa.array(keys, pa.int64())]).view(np.int64)
    columns = [hashes, times, keys, fares]
    schema = OPERATOR.inputs[0].schema
    arrays = [pa.array(values, kind) for values, kind in zip(columns, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def following(report: SubtaskReport, *, late: int | None, watermark: int | None) -> SubtaskTask:
    """The next epoch's task on what this epoch left."""
    base = (report.reference.SerializeToString(),)
    return replace(TASK, epoch=report.epoch + 1, base=base, late_us=late, watermark_us=watermark)


def metadata_of(store: ObjectStore, report: SubtaskReport) -> pb.OperatorCheckpointMetadata:
    path = report.reference.path
    return open_sealed(pb.OperatorCheckpointMetadata, store.get(path), where=path)


def output_of(store: ObjectStore, report: SubtaskReport) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for file in report.outbox:
        rows += pq.read_table(io.BytesIO(store.get(file.path))).to_pylist()
    return rows


def names_in(store: ObjectStore) -> list[str]:
    return [info.path for info in store.list("")]


def test_rows_go_into_the_state_and_come_out_once_when_their_window_closes() -> None:
    store = MemoryStore()
    first = run_subtask(TASK, store, [batch(ROWS)])
    assert (first.rows_in, first.rows_late, first.rows_out) == (4, 1, 0)
    assert (first.outbox, first.state_files, first.state_rows) == ((), 1, 2)
    second = run_subtask(following(first, late=None, watermark=10), store, [batch([(1, 9, 0.3)])])
    (row,) = output_of(store, second)
    assert (row["driver"], row["trips"], row["total"]) == (1, 3, 0.6)
    assert [row[name].microsecond for name in ("window_start", "window_end")] == [0, 10]
    third = run_subtask(following(second, late=10, watermark=20), store, [batch([(1, 9, 0.3)])])
    assert [row["driver"] for row in output_of(store, third)] == [2]
    assert (third.rows_late, third.state_files) == (1, 0)


def test_rows_that_arrive_in_the_epoch_that_closes_their_window_never_touch_the_state() -> None:
    store = MemoryStore()
    report = run_subtask(replace(TASK, watermark_us=100), store, [batch(ROWS)])
    assert (report.rows_out, report.state_files) == (2, 0)


def test_where_nothing_changed_the_bases_reference_is_handed_over() -> None:
    store = MemoryStore()
    first = run_subtask(TASK, store, [batch(ROWS)])
    before = names_in(store)
    idle = run_subtask(following(first, late=None, watermark=None), store, [])
    assert idle.reference == first.reference
    assert names_in(store) == before
    assert idle.bytes_written == 0


def test_a_rescaled_subtask_writes_metadata_of_its_own_even_without_rows() -> None:
    store = MemoryStore()
    first = run_subtask(TASK, store, [batch(ROWS)])
    base = (first.reference.SerializeToString(),)
    halves = [
        run_subtask(replace(TASK, epoch=2, base=base, subtask_index=index, parallelism=2), store, [])
        for index in range(2)
    ]
    assert [half.reference.owned for half in halves] == [owned_range(0, 2), owned_range(1, 2)]
    assert len({half.reference.path for half in halves}) == 2
    data = [path for path in names_in(store) if "/data/" in path]
    assert len(data) == 1, "rescaling rewrites nothing"


def test_more_files_than_allowed_are_merged_and_partials_of_one_window_combined() -> None:
    store = MemoryStore()
    report = run_subtask(TASK, store, [batch([(1, 0, 0.1)])])
    counts = [report.state_files]
    for _ in range(3 * MAX_FILES):
        report = run_subtask(following(report, late=None, watermark=None), store, [batch([(1, 0, 0.1)])])
        counts.append(report.state_files)
    assert max(counts) == MAX_FILES
    assert report.state_rows <= MAX_FILES, "partials of one window and key were not combined"
    closed = run_subtask(following(report, late=None, watermark=10), store, [])
    (row,) = output_of(store, closed)
    assert (row["trips"], row["total"]) == (25, 2.5)


def test_p6_every_attempt_gives_the_same_bytes_on_another_store_too(tmp_path: Any) -> None:
    stores: list[ObjectStore] = [MemoryStore(), LocalStore(tmp_path)]
    reports = [run_subtask(TASK, store, [batch(ROWS)]) for store in stores]
    assert reports[0].to_bytes() == reports[1].to_bytes()
    for path in names_in(stores[0]):
        assert stores[0].get(path) == stores[1].get(path)


def test_p6_a_crash_at_any_operation_and_a_second_attempt_give_the_same_names() -> None:
    clean = MemoryStore()
    first = run_subtask(TASK, clean, [batch(ROWS)])
    task = following(first, late=None, watermark=10)
    counted = FaultStore(clean)
    expected = run_subtask(task, counted, [batch([(2, 16, 0.5)])])
    assert len(counted.log) >= 6
    for number in range(1, len(counted.log) + 1):
        for fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER):
            disk = MemoryStore()
            run_subtask(TASK, disk, [batch(ROWS)])
            with pytest.raises(SimulatedCrash):
                run_subtask(task, FaultStore(disk, {number: fault}), [batch([(2, 16, 0.5)])])
            again = run_subtask(task, disk, [batch([(2, 16, 0.5)])])
            assert again.to_bytes() == expected.to_bytes()
            assert names_in(disk) == names_in(clean)


def test_p6_an_input_that_fails_on_the_way_leaves_nothing_that_a_second_attempt_would_not_write() -> None:
    store, clean = MemoryStore(), MemoryStore()

    def failing() -> Any:
        yield batch(ROWS)
        raise RuntimeError("the input ended badly")

    with pytest.raises(RuntimeError, match="ended badly"):
        run_subtask(TASK, store, failing())
    assert names_in(store) == []
    assert run_subtask(TASK, store, [batch(ROWS)]) == run_subtask(TASK, clean, [batch(ROWS)])


@pytest.mark.parametrize("kind", ["/data/", ".metadata"])
def test_p7_a_missing_or_damaged_object_of_the_base_is_named(kind: str) -> None:
    disk = MemoryStore()
    first = run_subtask(TASK, disk, [batch(ROWS)])
    (path,) = [name for name in names_in(disk) if kind in name]
    task = following(first, late=None, watermark=10)
    original = disk.get(path)
    for position in range(0, len(original), 7):
        damaged = bytearray(original)
        damaged[position] ^= 0x10
        disk.put(path, bytes(damaged))
        try:
            report = run_subtask(task, disk, [])
        except CorruptObjectError as error:
            assert path in error.where  # noqa: PT017 (either outcome is right, depending on the byte)
        else:
            # A byte of a part that was not needed, hence not read.
            assert kind == "/data/"
            assert output_of(disk, report)[0]["trips"] == 2
    disk.put(path, original[:-3])
    with pytest.raises(CorruptObjectError):
        run_subtask(task, disk, [])
    disk.delete(path)
    with pytest.raises(MissingFileError) as caught:
        run_subtask(task, disk, [])
    assert path in caught.value.where


def test_only_files_with_closing_windows_are_read() -> None:
    store = MemoryStore()
    first = run_subtask(TASK, store, [batch([(1, 5, 0.1)])])
    second = run_subtask(following(first, late=None, watermark=None), store, [batch([(1, 95, 0.1)])])
    newest = metadata_of(store, second).tables["partials"].subtasks[0].files[1].path
    watched = FaultStore(store)
    run_subtask(following(second, late=None, watermark=10), watched, [])
    read = {operation.path for operation in watched.log if operation.verb is Verb.GET_RANGE}
    assert read
    assert newest not in read


def test_a_row_of_another_subtask_is_refused_before_anything_is_written() -> None:
    store = MemoryStore()
    with pytest.raises(SubtaskError, match="does not own"):
        run_subtask(replace(TASK, parallelism=2), store, [batch([(1, 5, 0.1), (2, 5, 0.1)])])
    assert names_in(store) == []


@pytest.mark.parametrize(("late", "watermark"), [(None, 20), (None, None), (5, 20), (15, 12), (15, None)])
def test_watermarks_that_go_back_are_refused(late: int | None, watermark: int | None) -> None:
    store = MemoryStore()
    first = run_subtask(replace(TASK, watermark_us=10), store, [batch(ROWS)])
    with pytest.raises(SubtaskError, match="went back"):
        run_subtask(following(first, late=late, watermark=watermark), store, [])


def test_the_base_of_another_operator_is_refused() -> None:
    store = MemoryStore()
    first = run_subtask(TASK, store, [batch(ROWS)])
    other = replace(following(first, late=None, watermark=None), operator=replace(OPERATOR, operator_id="other"))
    with pytest.raises(SubtaskError, match="'rides'"):
        run_subtask(other, store, [])


def test_state_of_other_columns_is_refused_with_both_shown() -> None:
    store = MemoryStore()
    first = run_subtask(TASK, store, [batch(ROWS)])
    changed = replace(OPERATOR, aggregates=(count().bind("rides"),))
    with pytest.raises(InputError, match=r"(?s)rides .*int64.*trips .*int64"):
        run_subtask(replace(following(first, late=None, watermark=10), operator=changed), store, [])


def test_a_batch_without_a_needed_column_is_refused() -> None:
    with pytest.raises(InputError, match="_a1"):
        run_subtask(TASK, MemoryStore(), [batch(ROWS).drop_columns(["_a1"])])


def test_tasks_pickle_and_reports_survive_the_way_in_band() -> None:
    assert pickle.loads(pickle.dumps(TASK)) == TASK  # noqa: S301 (our own bytes)
    report = run_subtask(replace(TASK, watermark_us=10), MemoryStore(), [batch(ROWS)])
    assert len(report.outbox) == 1
    assert SubtaskReport.from_bytes(report.to_bytes()) == report


def test_p8_the_running_state_is_selectable_with_duckdb(tmp_path: Any) -> None:
    store = LocalStore(tmp_path)
    run_subtask(TASK, store, [batch(ROWS)])
    with duckdb.connect() as connection:
        state = connection.read_parquet(f"{tmp_path}/checkpoints/*/data/*.parquet")
        assert state.project("driver, trips, total").order("driver").fetchall() == [(1, 2, 0.1 + 0.2), (2, 1, 0.3)]


def test_metadata_describes_the_table_and_its_files() -> None:
    store = MemoryStore()
    report = run_subtask(replace(TASK, watermark_us=4), store, [batch(ROWS)])
    metadata = metadata_of(store, report)
    table = metadata.tables["partials"]
    part = table.subtasks[0]
    assert (metadata.watermark_us, metadata.parallelism, metadata.epoch) == (4, 1, 1)
    assert table.config.time_keyed.bin_us == 10
    assert list(table.config.time_keyed.key_columns) == ["driver"]
    assert (part.next_sequence, part.rows, len(part.files)) == (2, 2, 1)
    (file,) = part.files
    assert (file.min_time_us, file.max_time_us, file.sort_order) == (0, 10, pb.BIN_FIRST)
    assert part.bytes == file.size == len(store.get(file.path)) == report.state_bytes


@pytest.mark.parametrize("fault", [Fault.STORE_HALF, Fault.STORE_FLIPPED, Fault.STORE_NOTHING])
@pytest.mark.parametrize("folder", ["/data/", "/outbox/", "/operator-"])
def test_p1_a_subtask_whose_files_the_store_spoils_does_not_report(fault: Fault, folder: str) -> None:
    disk = MemoryStore()
    first = run_subtask(TASK, disk, [batch(ROWS)])
    store = FaultStore(
        disk, lambda operation: fault if operation.verb is Verb.PUT and folder in operation.path else None
    )
    with pytest.raises(LostWriteError) as lost:
        run_subtask(following(first, late=None, watermark=10), store, [batch([(1, 25, 0.3)])])
    assert folder in lost.value.where
    again = run_subtask(following(first, late=None, watermark=10), disk, [batch([(1, 25, 0.3)])])
    assert again.rows_out, "a retry writes the same names again"


def test_output_of_many_rows_is_divided_into_files_and_row_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = MemoryStore()
    report = run_subtask(replace(TASK, watermark_us=100), whole, [batch(ROWS)])
    rows = output_of(whole, report)
    assert len(rows) > 1
    monkeypatch.setattr(subtask, "FILE_ROWS", 2)
    monkeypatch.setattr(subtask, "ROW_GROUP_ROWS", 1)
    store = MemoryStore()
    divided = run_subtask(replace(TASK, watermark_us=100), store, [batch(ROWS)])
    assert output_of(store, divided) == rows
    assert [file.rows for file in divided.outbox] == [2] * (len(rows) // 2) + [1] * (len(rows) % 2)
    assert pq.read_metadata(io.BytesIO(store.get(divided.outbox[0].path))).num_row_groups == 2
    assert run_subtask(replace(TASK, watermark_us=100), MemoryStore(), [batch(ROWS)]) == divided
