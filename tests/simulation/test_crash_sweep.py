"""A crash at every store operation of a long workload, before and after its effect: P1, P2, P3, P5 hold after each."""

from collections.abc import Collection, Iterator, Sequence

import pytest
from simulation.world import World

from statebed.checkpoint import CheckpointLog, Origin, RollbackPolicy
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.sealed import seal
from statebed.testing.faults import Fault, FaultStore, Operation, SimulatedCrash

MINIMUM_OPERATIONS = 200
SLICES = 6


def workload(world: World, store: FaultStore) -> None:
    """Open, commit, savepoint, restart, fork, retain, clean up, drop, recover, stop."""
    first = world.process(store).open()
    for _ in range(6):
        first.epoch()
    ask(world, store, pb.Request(request_id="save", savepoint=pb.SavepointRequest(name="before_upgrade")))
    first.run.serve_requests()
    for _ in range(4):
        first.epoch()

    second = world.process(store).open()
    for _ in range(3):
        second.epoch(salt="second ")

    back = second.run.chain[-2]
    forked = world.process(store).open(origin=Origin(epoch=back), rollback=RollbackPolicy.ALLOW)
    for _ in range(3):
        forked.epoch(salt="forked ")

    restored = world.process(store).open(origin=Origin(savepoint="before_upgrade"), rollback=RollbackPolicy.ALLOW)
    restored.epoch(salt="restored ")
    ask(world, store, pb.Request(request_id="drop", drop_savepoint=pb.DropSavepointRequest(name="before_upgrade")))
    restored.run.serve_requests()
    for _ in range(5):
        restored.epoch(salt="restored ")
    world.seconds += 100
    restored.epoch(salt="restored ")
    assert CheckpointLog(store, "rides").recover().head is not None
    restored.commit("last ", pb.STOPPED)
    restored.publisher.publish_pending()


def ask(world: World, store: FaultStore, request: pb.Request) -> None:
    store.put_if_absent(names.request(request.request_id), seal(request))


def operations_of(world: World) -> tuple[Operation, ...]:
    store = FaultStore(world.disk)
    workload(world, store)
    return store.log


def test_the_workload_is_long_enough_and_holds_without_a_crash() -> None:
    world = World()
    assert len(operations_of(world)) >= MINIMUM_OPERATIONS
    world.check_recovery()
    world.check_retained()
    world.check_sinks()


# A death after a write leaves in the store what a death before the next operation leaves. The process alone knows less.
@pytest.mark.parametrize(
    "part",
    [
        0,
        *(pytest.param(part, marks=pytest.mark.slow) for part in range(2, SLICES, 2)),
        *(pytest.param(part, marks=pytest.mark.long) for part in range(1, SLICES, 2)),
    ],
)
def test_p1_p2_p3_p5_hold_after_a_crash_before_every_operation(part: int) -> None:
    points = frozenset(points_of(operations_of(World()), Fault.CRASH_BEFORE)[part::SLICES])
    found = 0
    for world in left_before(points):
        check_everything_after_the_crash(world)
        found += 1
    assert found == len(points)


def left_before(points: Collection[int]) -> Iterator[World]:
    """Yield what a death before each of these operations leaves; the process works on, so that it works only once."""
    world = World()
    left: list[World] = []

    def keep(operation: Operation) -> None:
        if operation.number in points:
            left.append(world.copied())

    workload(world, FaultStore(world.disk, before=keep))
    while left:
        yield left.pop()


@pytest.mark.parametrize(
    "part",
    [0, *(pytest.param(part, marks=pytest.mark.long) for part in range(1, SLICES))],
)
def test_p1_p2_p3_p5_hold_after_a_crash_after_every_operation(part: int) -> None:
    for number in points_of(operations_of(World()), Fault.CRASH_AFTER)[part::SLICES]:
        world = World()
        store = FaultStore(world.disk, {number: Fault.CRASH_AFTER})
        with pytest.raises(SimulatedCrash):
            workload(world, store)
        check_everything_after_the_crash(world)


def points_of(operations: Sequence[Operation], fault: Fault) -> list[int]:
    """Return the operations at which the death of the process leaves different stores or sinks.

    Nothing changes between a read and the next read: of the reads between two writes, the first follows the write
    immediately, and sinks are written between it and the next write.
    """
    after_write = {op.number + 1 for op in operations if op.verb.writes}
    return [
        op.number for op in operations if op.verb.writes or (fault is Fault.CRASH_BEFORE and op.number in after_write)
    ]


def check_everything_after_the_crash(world: World) -> None:
    world.check_recovery()
    survivor = world.process().open(rollback=RollbackPolicy.ALLOW)
    survivor.run.serve_requests()
    world.check_recovery()
    survivor.epoch(salt="after the crash ")
    world.check_retained()
    world.check_sinks()
    survivor.finish()
    world.check_retained()
    world.check_sinks()
    for info in world.disk.list(names.REQUESTS):  # clients take requests and answers away
        world.disk.delete(info.path)
    world.check_no_orphans()


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.LOSE_WRITE])
def test_p1_p2_hold_when_the_answer_of_any_conditional_put_is_lost(
    fault: Fault,
) -> None:
    world = World()
    store = FaultStore(world.disk)
    workload(world, store)
    records = [
        op.number for op in store.log if op.verb.value == "put_if_absent" and op.path.endswith("checkpoint.metadata")
    ]
    assert len(records) > 20
    for number in records:
        world = World()
        workload(world, FaultStore(world.disk, {number: fault}))
        world.check_recovery()
        world.check_retained()
        world.check_sinks()
