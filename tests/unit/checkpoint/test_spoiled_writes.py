"""P1: an epoch is acknowledged only when the store has every byte of it, whatever the store says."""

from dataclasses import replace
from pathlib import Path

import pytest
from unit.checkpoint.place import JOB, Place

from statebed.checkpoint import CheckpointLog, Run, send_request
from statebed.errors import CorruptObjectError, CorruptRecordError, LostWriteError, OutcomeUnknownError, StatebedError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.sealed import open_sealed, seal
from statebed.spark.checkpoint.folder import SparkProjection
from statebed.state import TableManager, TaskInfo, global_table_config
from statebed.storage import LocalStore, MemoryStore, ObjectStore, ScopedStore
from statebed.testing.faults import Fault, FaultStore, Operation, Verb

SPOILS = [Fault.STORE_HALF, Fault.STORE_FLIPPED, Fault.STORE_NOTHING]


def spoiling(store: ObjectStore, fault: Fault, ending: str) -> FaultStore:
    """Spoil every write of objects whose names end so."""
    return FaultStore(
        store, lambda operation: fault if operation.verb.writes and operation.path.endswith(ending) else None
    )


@pytest.mark.parametrize("fault", SPOILS)
@pytest.mark.parametrize("ending", [".parquet", ".metadata"])
def test_p1_a_checkpoint_whose_files_the_store_spoils_is_not_acknowledged(
    tmp_path: Path, fault: Fault, ending: str
) -> None:
    for disk in (MemoryStore(), LocalStore(tmp_path)):
        store = spoiling(ScopedStore(disk, "job"), fault, ending)
        with TableManager(TaskInfo("job", "op"), global_table_config("t", ""), store) as manager:
            manager.get_global_keyed_state("t").insert("ann", 1)
            with pytest.raises(LostWriteError) as lost:
                manager.checkpoint(1).result(timeout=30)
        assert ending in lost.value.where


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault.STORE_HALF, CorruptRecordError),
        (Fault.STORE_FLIPPED, CorruptRecordError),
        (Fault.STORE_NOTHING, OutcomeUnknownError),
    ],
)
def test_p1_a_record_that_the_store_spoils_is_not_acknowledged(
    place: Place, fault: Fault, error: type[StatebedError]
) -> None:
    run = place.open(through=spoiling(place.disk, fault, names.record(2)))
    with pytest.raises(error):
        place.commit(run)
    with pytest.raises(error):  # the run is dead: whatever stands at its number is not its own to replace
        place.commit(run)


def test_p1_a_record_that_is_lost_once_is_put_again(place: Place) -> None:
    lost: list[Operation] = []

    def lose_once(operation: Operation) -> Fault | None:
        if operation.verb is Verb.PUT_IF_ABSENT and operation.path.endswith(names.record(2)) and not lost:
            lost.append(operation)
            return Fault.STORE_NOTHING
        return None

    run = place.open(through=FaultStore(place.disk, lose_once))
    record = place.commit(run)
    assert CheckpointLog(place.store, JOB).read(2).nonce == record.nonce
    assert place.store.get(names.record(2)) == seal(record)


@pytest.mark.parametrize("fault", SPOILS)
def test_p1_a_savepoint_that_the_store_spoils_is_not_granted(place: Place, fault: Fault) -> None:
    """A savepoint is a copy of a record, which may be all that is left of its epoch."""

    def spoils(operation: Operation) -> Fault | None:
        return fault if operation.verb.writes and "/savepoint-" in operation.path else None

    run = place.open(through=FaultStore(place.disk, spoils))
    place.commit(run)
    request = pb.Request(request_id="r", savepoint=pb.SavepointRequest(name="monday"))
    place.store.put_if_absent(names.request("r"), seal(request))
    with pytest.raises(LostWriteError):
        served_and_committed(place, run)
    assert not place.open().head.pins


@pytest.mark.parametrize("fault", SPOILS)
def test_p1_a_source_log_that_the_store_spoils_is_not_named(tmp_path: Path, fault: Fault) -> None:
    """Files of a source's log are part of the position: without one, a restart would read its files again."""
    disk = MemoryStore()
    folder = tmp_path / "spark"
    for name in ("offsets/0", "sources/0/0"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text('v1\n{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}\n{"logOffset":0}')
    for store, spoils in ((spoiling(disk, fault, ""), True), (disk, False)):
        projection = SparkProjection(folder, store, sources=["trips"])
        if spoils:
            with pytest.raises(LostWriteError) as lost:
                projection.position(epoch=2, query_id="q", batch_id=0, spark_version="4.1")
            assert "/source/" in lost.value.where
    position = projection.position(epoch=2, query_id="q", batch_id=0, spark_version="4.1")
    assert disk.get(position.source_logs[0].path) == (folder / "sources/0/0").read_bytes()


@pytest.mark.parametrize("kept", [slice(0, 40), slice(1, None)])
def test_p1_a_folder_for_spark_that_the_disk_spoils_is_not_started_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: slice
) -> None:
    """Spark continues from the offsets that it finds there."""
    write = Path.write_bytes
    monkeypatch.setattr(Path, "write_bytes", lambda path, data: write(path, data[kept]))
    offsets = b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}\n{"logOffset":0}'
    position = pb.SourcePosition(
        kind="spark",
        query_id="q",
        batch_id=0,
        sources=["trips"],
        offsets=[pb.LogEntry(name="0", content=offsets)],
        commits=[pb.LogEntry(name="0", content=b'v1\n{"nextBatchWatermarkMs":0}')],
    )
    with pytest.raises(LostWriteError, match="offsets/0"):
        SparkProjection(tmp_path / "spark", MemoryStore(), sources=["trips"]).build(position)


@pytest.mark.parametrize("fault", SPOILS)
def test_a_request_that_the_store_spoils_has_no_effect(place: Place, fault: Fault) -> None:
    """Requests and answers are not read back: the sender gets an error or a time-out."""
    run = place.open()
    place.commit(run)
    request = pb.Request(request_id="r", savepoint=pb.SavepointRequest(name="monday"))
    sending = spoiling(place.store, fault, names.request("r"))
    sending.put_if_absent(names.request("r"), seal(request))
    served_and_committed(place, run)
    assert not run.head.pins
    if fault is Fault.STORE_NOTHING:
        assert place.store.head(names.answer("r")) is None
    else:
        answer = open_sealed(pb.Answer, place.store.get(names.answer("r")), where="")
        assert (answer.granted, answer.code) == (False, "CORRUPT_OBJECT")


@pytest.mark.parametrize("fault", [Fault.STORE_HALF, Fault.STORE_FLIPPED])
def test_an_answer_that_the_store_spoils_is_never_taken_for_one(place: Place, fault: Fault) -> None:
    run = place.open(through=spoiling(place.disk, fault, names.answer("r")))
    place.commit(run)

    def serve(_: float) -> None:
        served_and_committed(place, run)

    environment = replace(place.environment, sleep=serve)
    request = pb.Request(request_id="r", savepoint=pb.SavepointRequest(name="monday"))
    with pytest.raises(CorruptObjectError, match="statebed show"):
        send_request(place.store, request, timeout_s=5, environment=environment)
    assert [pin.savepoint for pin in run.head.pins] == ["monday"], "the record tells that it was granted"


@pytest.mark.parametrize("fault", SPOILS)
def test_a_marker_that_the_store_spoils_at_most_repeats_a_publication(place: Place, fault: Fault) -> None:
    """A marker is known by its name alone, and a sink compares epochs, so its bytes decide nothing."""
    run = place.open(through=spoiling(place.disk, fault, names.published(2, "out")))
    place.commit(run, sinks=("out",))
    run.mark_published(2, "out")
    again = [(record.epoch, sinks) for record, sinks in place.open().pending()]
    assert again == ([(2, ("out",))] if fault is Fault.STORE_NOTHING else [])


def served_and_committed(place: Place, run: Run) -> None:
    run.serve_requests()
    place.commit(run)
