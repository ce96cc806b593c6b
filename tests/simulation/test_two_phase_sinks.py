"""User-defined two-phase sinks: a crash at any step of writers, record and commit loses and repeats nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest

from statebed.checkpoint import EpochDraft, Publisher, Run
from statebed.errors import InputError, SinkError
from statebed.format import checkpoint_pb2 as pb
from statebed.format.schema import KEY_HASH, TIME
from statebed.format.stream_schema import Changes, Input
from statebed.operators.forward import Forward
from statebed.sinks import TwoPhaseSink
from statebed.storage import MemoryStore, ScopedStore
from statebed.subtasks import SubtaskReport, SubtaskTask, run_subtask
from statebed.subtasks.staged_writer import StagedOutput
from statebed.testing.faults import Fault, FaultStore, SimulatedCrash

JOB, SINK, SUBTASKS, EPOCHS = "job", "folder", 2, 3
COLUMNS = pa.schema([("n", pa.int64())])


@dataclass(frozen=True)
class CsvWriter:
    """Writes a file that commit moves into place."""

    folder: Path

    def write(self, rows: pa.Table, *, epoch: int, part: str) -> bytes:
        name = f"{epoch:06d}-{part}.csv"
        pa_csv.write_csv(rows, self.folder / f".{name}")
        return name.encode()


class CsvFolder(TwoPhaseSink):
    """A folder of CSV files."""

    def __init__(self, folder: Path, step: Callable[[], None] = lambda: None) -> None:
        super().__init__(SINK)
        self._folder, self._step = folder, step

    @property
    def writer(self) -> CsvWriter:
        return CsvWriter(self._folder)

    def commit(self, epoch: int, data: Sequence[bytes]) -> None:
        for name in map(bytes.decode, data):
            self._step()
            staged = self._folder / f".{name}"
            if staged.exists():
                staged.replace(self._folder / name)
        self._step()

    def numbers(self) -> list[int]:
        files = sorted(path for path in self._folder.iterdir() if not path.name.startswith("."))
        return sorted(n for path in files for n in pa_csv.read_csv(path).column("n").to_pylist())


def operator() -> Forward:
    return Forward("op", Input("input", COLUMNS, ("n",), Changes.APPEND))


def batch(number: int, subtask: int) -> pa.RecordBatch:
    """Two rows of an epoch that the subtask owns."""
    rows = [10 * number + subtask, 10 * number + subtask + 5]
    key_hash = np.full(2, subtask << 63, dtype=np.uint64).view(np.int64)
    return pa.record_batch(
        {
            "n": pa.array(rows, pa.int64()),
            KEY_HASH: pa.array(key_hash, pa.int64()),
            TIME: pa.array([None, None], pa.timestamp("us", "UTC")),
        }
    )


def subtasks(run: Run, sink: TwoPhaseSink, number: int) -> list[SubtaskReport]:
    made = []
    for subtask in range(SUBTASKS):
        task = SubtaskTask(
            job_id=JOB,
            epoch=run.next_epoch,
            operator=operator(),
            subtask_index=subtask,
            parallelism=SUBTASKS,
            base=(),
            late_us=None,
            watermark_us=None,
            epoch_time_us=0,
            staging=(StagedOutput(SINK, "", sink.writer),),
            staged_only=frozenset({""}),
        )
        made.append(run_subtask(task, run.store, [batch(number, subtask)]))
    return made


def work(store: FaultStore, sink: TwoPhaseSink) -> None:
    """Bring the job to its last epoch: what a process does until it dies."""
    run = Run.open(ScopedStore(store, JOB), JOB)
    publisher = Publisher(run, [sink])
    publisher.open()
    done = int(run.head.source_position.opaque or b"0")
    for number in range(done, EPOCHS):
        reports = subtasks(run, sink, number)
        pieces = [
            pb.CommitData(subtask_index=report.subtask_index, data=data)
            for report in reports
            for _, data in report.staged
        ]
        entry = pb.SinkEntry(sink_id=SINK, operator_id="op", commit_data=pieces)
        position = pb.SourcePosition(kind="test", opaque=str(number + 1).encode())
        run.commit(EpochDraft(operators=[], outbox=[], sinks=[entry], source_position=position))
        publisher.publish_pending()


EXPECTED = sorted(10 * number + subtask + more for number in range(EPOCHS) for subtask in range(2) for more in (0, 5))


def visible(folder: Path) -> list[int]:
    return CsvFolder(folder).numbers()


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_p2_rows_are_visible_once_after_a_crash_at_any_store_operation(tmp_path: Path, fault: Fault) -> None:
    counted = FaultStore(MemoryStore())
    (tmp_path / "clean").mkdir()
    work(counted, CsvFolder(tmp_path / "clean"))
    assert visible(tmp_path / "clean") == EXPECTED
    operations = len(counted.log)
    assert operations > 10
    for number in range(1, operations + 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        disk = MemoryStore()
        with pytest.raises(SimulatedCrash):
            work(FaultStore(disk, {number: fault}), CsvFolder(folder))
        before = visible(folder)
        assert set(before) <= set(EXPECTED)
        assert len(set(before)) == len(before)
        work(FaultStore(disk), CsvFolder(folder))
        assert visible(folder) == EXPECTED


def test_p2_rows_are_visible_once_after_a_crash_inside_commit(tmp_path: Path) -> None:
    for number in range(EPOCHS * (SUBTASKS + 1)):
        folder = tmp_path / str(number)
        folder.mkdir()
        disk = MemoryStore()
        left = [number]

        def step(left: list[int] = left) -> None:
            if not left[0]:
                raise SimulatedCrash
            left[0] -= 1

        with pytest.raises(SimulatedCrash):
            work(FaultStore(disk), CsvFolder(folder, step))
        work(FaultStore(disk), CsvFolder(folder))
        assert visible(folder) == EXPECTED


def test_a_repeated_attempt_reports_the_same_bytes_and_needs_no_outbox(tmp_path: Path) -> None:
    run = Run.open(ScopedStore(MemoryStore(), JOB), JOB)
    first, again = (subtasks(run, CsvFolder(tmp_path), 0) for _ in range(2))
    assert [report.to_bytes() for report in first] == [report.to_bytes() for report in again]
    assert [report.staged for report in first] == [((SINK, b"000002-op-0.csv"),), ((SINK, b"000002-op-1.csv"),)]
    assert [report.outbox for report in first] == [(), ()]
    assert SubtaskReport.from_bytes(first[0].to_bytes()) == first[0]


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        ("text", InputError, "must return at most 65536 bytes, got str"),
        (b"x" * 70_000, InputError, "got 70000 bytes"),
        (ValueError("disk full"), SinkError, r"the writer of sink folder raised ValueError: disk full"),
    ],
)
def test_a_writer_that_fails_or_returns_something_else_is_named(
    tmp_path: Path, returned: object, error: type[Exception], message: str
) -> None:
    class Broken(CsvFolder):
        @property
        def writer(self) -> CsvWriter:
            class Writer(CsvWriter):
                def write(self, rows: pa.Table, *, epoch: int, part: str) -> bytes:
                    if isinstance(returned, Exception):
                        raise returned
                    return returned  # type: ignore[return-value]  # a mistake of the user

            return Writer(tmp_path)

    run = Run.open(ScopedStore(MemoryStore(), JOB), JOB)
    with pytest.raises(error, match=message):
        subtasks(run, Broken(tmp_path), 0)
