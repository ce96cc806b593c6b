"""P1: an epoch is acknowledged only when the store has every byte of it, whatever the store says."""

from pathlib import Path

import pytest
from unit.checkpoint.place import JOB, Place

from statebed.checkpoint import CheckpointLog, Run
from statebed.errors import CorruptRecordError, LostWriteError, OutcomeUnknownError, StatebedError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.sealed import seal
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


def served_and_committed(place: Place, run: Run) -> None:
    run.serve_requests()
    place.commit(run)
