"""A tool that changes a job dies at every store operation: the job is as it was, or as it should be, and continues.

The state after a crash depends on the writes before it alone, so the tool dies before each of its writes, and after the
last. Then the job starts by itself, and the same change can be made again.
"""

from collections.abc import Callable, Iterator

import pytest
from maintained_job import JOB, MaintainedJob, maintained_job

from statebed.checkpoint import CheckpointLog
from statebed.errors import StatebedError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.inspect.verification import verify_log
from statebed.maintain import (
    Through,
    compact_offline,
    create_savepoint,
    plan_repair,
    remove_garbage,
    repair,
    rescale_offline,
)
from statebed.protocol.records import data_epoch_of
from statebed.storage import MemoryStore, ObjectStore
from statebed.testing.faults import Fault, FaultStore, SimulatedCrash

Change = Callable[[CheckpointLog], object]
DAMAGED_EPOCH = 5
INTACT_EPOCH = 4

RECORD = names.record(1).rsplit("/", 1)[1]


def repaired(log: CheckpointLog) -> object:
    return repair(log, plan_repair(log, verify_log(log)))


CHANGES: dict[str, Change] = {
    "repair": repaired,
    "rescale": lambda log: rescale_offline(log, 3),
    "compact": compact_offline,
    "savepoint": lambda log: create_savepoint(log, "monday", through=Through.OWN_RUN),
    "gc": lambda log: remove_garbage(log, through=Through.OWN_RUN, grace_us=0),
}


@pytest.fixture(scope="module")
def original() -> Iterator[MaintainedJob]:
    """Epochs 2 to 5, retained from 3 on, with garbage."""
    with maintained_job(retained=3) as made:
        made.open()
        for _ in range(4):
            made.epoch()
        made.store.put(names.data_file(3, "totals", "counts", 0, "0" * 32), b"of an attempt that failed")
        yield made


def copy_of(original: MaintainedJob, *, damaged: bool) -> MaintainedJob:
    disk = MemoryStore()
    for info in original.disk.list(""):
        disk.put(info.path, original.disk.get(info.path))
    job = MaintainedJob(original.tiers, disk, retained=3, now_us=original.now_us, states=dict(original.states))
    job.ids = 1000
    job.sink.position, job.sink.epochs = original.sink.position, list(original.sink.epochs)
    if damaged:
        path = next(info.path for info in job.store.list(names.epoch_folder(DAMAGED_EPOCH)) if "/data/" in info.path)
        job.store.put(path, job.store.get(path)[:-1])
    return job


def log_of(job: MaintainedJob, store: ObjectStore | None = None) -> CheckpointLog:
    return CheckpointLog(store or job.store, JOB, job.environment)


def check_job(job: MaintainedJob, *, data_epoch: int) -> None:
    """Check that the job starts by itself with the state of this epoch, continues, and that clean-up leaves nothing
    behind.
    """
    job.open()
    assert job.read(job.run.head) == job.state_after(data_epoch)
    job.states[data_epoch_of(job.run.head)] = job.state_after(data_epoch)
    record = job.epoch(salt=3)
    assert job.read(record) == job.states[record.epoch]
    assert verify_log(log_of(job), epoch=record.epoch).whole


@pytest.mark.parametrize("name", CHANGES)
def test_p1_p2_p5_a_tool_that_dies_anywhere_leaves_the_job_as_it_was_or_as_it_should_be(
    original: MaintainedJob, name: str
) -> None:
    change, damaged = CHANGES[name], name == "repair"
    whole = copy_of(original, damaged=damaged)
    counting = FaultStore(whole.store)
    change(log_of(whole, counting))
    writes = [operation.number for operation in counting.log if operation.verb.writes]
    assert writes
    committed = max(
        (one.number for one in counting.log if one.verb.writes and one.path.endswith(RECORD)), default=writes[-1]
    )
    plan: list[tuple[int, Fault]] = [(number, Fault.CRASH_BEFORE) for number in writes]
    for number, fault in [*plan, (writes[-1], Fault.CRASH_AFTER)]:
        job = copy_of(original, damaged=damaged)
        with pytest.raises(SimulatedCrash):
            change(log_of(job, FaultStore(job.store, {number: fault})))
        changed = fault is Fault.CRASH_AFTER or number > committed
        if not damaged:
            check_job(job, data_epoch=DAMAGED_EPOCH)
        elif changed:
            check_job(job, data_epoch=INTACT_EPOCH)
        else:
            with pytest.raises(StatebedError):
                job.open()
            repaired(log_of(job))
            check_job(job, data_epoch=INTACT_EPOCH)


@pytest.mark.parametrize("name", ["rescale", "compact"])
def test_p5_after_a_tool_died_the_same_change_is_made_and_what_it_left_is_collected(
    original: MaintainedJob, name: str
) -> None:
    whole = copy_of(original, damaged=False)
    counting = FaultStore(whole.store)
    CHANGES[name](log_of(whole, counting))
    writes = [operation.number for operation in counting.log if operation.verb.writes]
    for number in writes[1:]:
        job = copy_of(original, damaged=False)
        with pytest.raises(SimulatedCrash):
            CHANGES[name](log_of(job, FaultStore(job.store, {number: Fault.CRASH_BEFORE})))
        CHANGES[name](log_of(job))
        head = log_of(job).head() or pb.CheckpointMetadata()
        assert head.parallelism == (3 if name == "rescale" else 2)
        assert job.read(head, parallelism=head.parallelism) == job.states[DAMAGED_EPOCH]
        remove_garbage(log_of(job), through=Through.OWN_RUN, grace_us=0)
        found = verify_log(log_of(job))
        assert found.whole
        assert not found.orphans
