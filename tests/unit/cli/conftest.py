"""A small state location on disk, and a way to call the command line as a user does."""

from pathlib import Path

import dashboard_jobs
import pytest
from command_line import Call, Outcome

from statebed.checkpoint import Run
from statebed.cli import main
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.digest import crc32c, digest
from statebed.format.sealed import seal
from statebed.storage import LocalStore, ScopedStore

JOB = "rides"
NOON_US = 1_767_268_800_000_000  # 2026-01-01T12:00:00Z


@pytest.fixture
def statebed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")

    def call(*arguments: str | Path) -> Outcome:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call


def subtask_reference(store: ScopedStore, epoch: int) -> pb.SubtaskReference:
    files = [pb.FileEntry(path=f"checkpoints/{epoch:012d}/data/x.parquet", size=1500, rows=40)]
    table = pb.TableCheckpointMetadata(
        config=pb.TableConfig(name="partials", time_keyed=pb.TimeKeyedTableConfig(bin_us=1)),
        subtasks={0: pb.TableSubtaskCheckpointMetadata(files=files)},
    )
    metadata = pb.OperatorCheckpointMetadata(
        job_id=JOB, operator_id="per_minute", epoch=epoch, tables={"partials": table}
    )
    data = seal(metadata)
    path = names.operator_metadata(epoch, "per_minute", 0, digest(data))
    store.put(path, data)
    return pb.SubtaskReference(path=path, size=len(data), crc32c=crc32c(data))


def put_record(
    store: ScopedStore, epoch: int, *, kind: pb.RecordKind.ValueType, run: int, base: int, lineage: str
) -> None:
    operator = pb.OperatorEntry(
        operator_id="per_minute",
        parallelism=1,
        rows_in=100 * epoch,
        rows_late=3,
        rows_out=7,
        inputs=[pb.InputWatermark(input="rides", watermark_us=NOON_US)],
        output_watermark_us=NOON_US + 59_999_999,
        subtasks=[subtask_reference(store, epoch)],
    )
    record = pb.CheckpointMetadata(
        job_id=JOB,
        epoch=epoch,
        kind=kind,
        previous=epoch - 1,
        base=base,
        lineage=lineage,
        run=run,
        status=pb.COMPLETE,
        min_epoch=1,
        start_time_us=NOON_US,
        finish_time_us=NOON_US + 250_000,
        operators=[operator],
        source_position=pb.SourcePosition(kind="spark", query_id="q", batch_id=epoch + 10),
        outbox=[pb.OutboxFile(operator_id="per_minute", path="o", rows=7, size=900)],
        sinks=[pb.SinkEntry(sink_id="minutes", operator_id="per_minute")],
        written_by="statebed test",
    )
    store.put(names.record(epoch), seal(record))


@pytest.fixture
def location(tmp_path: Path) -> Path:
    """Epochs 2 to 4 of run 1; then a fork from epoch 2: run 5 with epoch 6. Epoch 7 was begun, not committed."""
    state = tmp_path / "state"
    store = ScopedStore(LocalStore(state), JOB)
    put_record(store, 1, kind=pb.RUN_START, run=1, base=0, lineage="000000000001")
    for epoch in (2, 3, 4):
        put_record(store, epoch, kind=pb.EPOCH, run=1, base=epoch - 1 if epoch > 2 else 0, lineage="000000000001")
    put_record(store, 5, kind=pb.RUN_START, run=5, base=2, lineage="000000000005")
    put_record(store, 6, kind=pb.EPOCH, run=5, base=2, lineage="000000000005")
    store.put(names.published(6, "minutes"), b"")
    store.put("checkpoints/000000000007/data/begun.parquet", b"x")
    (state / "events").mkdir()
    (state / "events" / "a.parquet").write_bytes(b"not a job")
    return state


@pytest.fixture(scope="session")
def rides(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state of a job with three operators after eight epochs, of which six are retained. Not to be changed."""
    state = tmp_path_factory.mktemp("rides") / "state"
    with dashboard_jobs.written(LocalStore(state), retained=6) as writer:
        writer.epochs(7)
        writer.feed("[red]d\x1b[31m7")
    return state


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state of a job with the savepoint "monday" of epoch 3; its newest epoch is 5. Not to be changed."""
    state = tmp_path_factory.mktemp("saved") / "state"
    store = LocalStore(state)
    with dashboard_jobs.written(store) as writer:
        writer.epochs(2)
        live: Run = writer.run._cluster.run
        live.add_request(pb.Request(savepoint=pb.SavepointRequest(name="monday", epoch=3)))
        writer.epochs(2)
    return state
