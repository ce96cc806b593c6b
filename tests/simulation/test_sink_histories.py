"""Histories of sinks: whatever happens to a target between two starts, rows are there or the start is refused.

After every history the sink holds exactly the rows of the model, or the start was refused with an error that names
epochs and left the target as it was; what the error offers then leads back to the model, or to what was given up.
"""

import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from effort import examples
from simulation.sink_world import KINDS, LAKE_KINDS, Mortal, SinkWorld, dies, model

from statebed.checkpoint import DamagePolicy, Origin, RollbackPolicy, SinkStart
from statebed.errors import CorruptRecordError, FencedError, InputError, RollbackError, SinkStartError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.storage import ScopedStore
from statebed.testing.faults import Fault, FaultStore

History = Callable[[SinkWorld], None]
HISTORIES: dict[str, History] = {}


def history(step: History) -> History:
    HISTORIES[step.__name__] = step
    return step


def begun(world: SinkWorld, epochs: int = 10) -> None:
    """A first life: some epochs, one of them without rows."""
    assert world.start()
    world.epochs(epochs - 1)
    world.epochs(1, rows=False)


# ---- histories that must be refused where a target remembers what it has -------------------------------------------


@history
def deleted(world: SinkWorld) -> None:
    begun(world)
    world.delete()
    world.start()


@history
def emptied(world: SinkWorld) -> None:
    begun(world)
    world.empty()
    world.start()


@history
def deleted_after_a_refusal(world: SinkWorld) -> None:
    begun(world)
    world.delete()
    world.start()
    world.start()


@history
def given_another_path(world: SinkWorld) -> None:
    begun(world)
    world.move(rows=False)
    world.start()


@history
def deleted_while_epochs_wait(world: SinkWorld) -> None:
    begun(world)
    world.commit()
    world.delete()
    world.start()


@history
def restored_from_before_the_first_epoch(world: SinkWorld) -> None:
    assert world.start()
    world.backup("empty")
    world.epochs(10)
    world.restore("empty")
    world.start()


@history
def deleted_and_the_state_forked_back(world: SinkWorld) -> None:
    begun(world)
    epoch = world.run.chain[-2]
    world.delete()
    world.start(origin=Origin(epoch=epoch), rollback=RollbackPolicy.ALLOW)


@history
def away_from_the_job_for_some_epochs(world: SinkWorld) -> None:
    begun(world)
    assert world.start(sinks=[])
    for _ in range(3):
        world.commit(sink_ids=["another"])
        world.run.mark_published(world.run.head.epoch, "another")
    world.start(abandon=["another"])


@history
def away_and_deleted(world: SinkWorld) -> None:
    begun(world)
    assert world.start(sinks=[])
    world.commit(sink_ids=["another"])
    world.run.mark_published(world.run.head.epoch, "another")
    world.delete()
    world.start()


@history
def written_by_a_job_of_the_same_name_with_another_state(world: SinkWorld) -> None:
    other = world.other("elsewhere")
    assert other.start()
    other.epochs(4)
    assert world.start(sinks=[])
    for _ in range(8):
        world.commit()
    world.start()


@history
def ahead_of_a_state_that_was_restored_from_a_backup_and_maintained(world: SinkWorld) -> None:
    """Tools commit epochs, too, which give the numbers again that the sink has from the log before."""
    begun(world)
    kept = type(world.disk)()
    for info in world.disk.list(""):
        kept.put(info.path, world.disk.get(info.path))
    world.epochs(3)
    newest = world.run.head.epoch
    world.disk = kept
    tool = type(world.run).open(ScopedStore(kept, world.job), world.job, options=world.run.options)
    while tool.head.epoch < newest:
        tool.commit(tool.carry_over())
    world.start()


# ---- histories that must lose nothing ------------------------------------------------------------------------------


@history
def nothing_happened(world: SinkWorld) -> None:
    begun(world)
    assert world.start()


@history
def quiet_for_longer_than_epochs_are_retained(world: SinkWorld) -> None:
    begun(world)
    world.epochs(12, rows=False)
    assert world.start()
    world.epochs(1)


@history
def moved_with_all_its_rows(world: SinkWorld) -> None:
    begun(world)
    at = world.path
    world.move(rows=True)
    if world.kind.startswith("iceberg"):  # it has absolute paths
        with pytest.raises(InputError, match="moved or copied"):
            world.sink.peek()
        world.path.rename(at)
        world.path = at
    assert world.start()
    world.epochs(2)


@history
def rescaled(world: SinkWorld) -> None:
    begun(world)
    for parallelism in (2, 1, 2):
        world.parallelism = parallelism
        assert world.start()
        world.epochs(3)


@history
def behind_by_retained_epochs_for_many_runs(world: SinkWorld) -> None:
    begun(world, 4)
    for _ in range(6):  # runs of tools, and runs that die before they publish
        world.run = type(world.run).open(ScopedStore(world.disk, world.job), world.job, options=world.run.options)
        world.commit()
    assert world.start()


@history
def a_superseded_run_goes_on(world: SinkWorld) -> None:
    begun(world)
    old = world.run
    assert world.start()
    world.epochs(1)
    with pytest.raises(FencedError):
        old.check_live()


@history
def forked_from_the_head(world: SinkWorld) -> None:
    begun(world)
    world.commit()  # never published, then abandoned
    epoch = world.run.chain[-2]
    assert world.start(origin=Origin(epoch=epoch))
    world.epochs(2)


@history
def started_from_a_savepoint_of_now(world: SinkWorld) -> None:
    begun(world)
    world.run.add_request(pb.Request(savepoint=pb.SavepointRequest(name="now")))
    world.epochs(1, rows=False)
    assert world.start(origin=Origin(savepoint="now"), rollback=RollbackPolicy.ALLOW)
    world.epochs(2)


@history
def the_job_renamed_its_state_folder(world: SinkWorld) -> None:
    begun(world)
    moved = world.disk
    world.disk = type(moved)()
    for info in moved.list(""):
        world.disk.put(info.path, moved.get(info.path))
    assert world.start()
    world.epochs(2)


# ---- histories that are refused for one kind of sink and not for another -------------------------------------------


@history
def rolled_back_past_published_epochs(world: SinkWorld) -> None:
    begun(world)
    epoch = world.run.chain[-3]
    if world.start(origin=Origin(epoch=epoch), rollback=RollbackPolicy.ALLOW):
        world.epochs(2)
    else:
        assert isinstance(world.refused, RollbackError)
        assert world.kind == "sqlite"  # rows that were replaced are not kept
        assert world.start(origin=Origin(epoch=epoch), rollback=RollbackPolicy.ALLOW, choice=SinkStart.REBUILD)
        world.epochs(2)


@history
def rolled_back_without_being_asked(world: SinkWorld) -> None:
    begun(world)
    assert not world.start(origin=Origin(epoch=world.run.chain[-3]))


@history
def the_newest_record_was_lost(world: SinkWorld) -> None:
    begun(world)
    ScopedStore(world.disk, world.job).delete(names.record(world.run.head.epoch))
    assert not world.start()
    assert isinstance(world.refused, CorruptRecordError)
    if world.start(damage=DamagePolicy.FALL_BACK, rollback=RollbackPolicy.ALLOW):
        world.epochs(2)


REFUSED = {
    "deleted",
    "emptied",
    "deleted_after_a_refusal",
    "given_another_path",
    "deleted_while_epochs_wait",
    "restored_from_before_the_first_epoch",
    "deleted_and_the_state_forked_back",
    "away_from_the_job_for_some_epochs",
    "away_and_deleted",
    "written_by_a_job_of_the_same_name_with_another_state",
    "ahead_of_a_state_that_was_restored_from_a_backup_and_maintained",
}
FOR_GOOD = {
    "written_by_a_job_of_the_same_name_with_another_state",
    "ahead_of_a_state_that_was_restored_from_a_backup_and_maintained",
}
"""Cases in which the target belongs to another job, so that no choice is offered."""


@pytest.fixture(params=[*KINDS, *(pytest.param(kind, marks=pytest.mark.long) for kind in LAKE_KINDS)])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> SinkWorld:
    return SinkWorld(request.param, tmp_path)


def dies_in_a_life(world: SinkWorld, *, at: int, after: bool) -> bool:
    """Start with a sink whose process dies at its n-th call, and commit epochs until it does."""
    mortal = Mortal(world.sink, at=at, after=after)

    def life() -> None:
        if world.start(sinks=[mortal]):
            world.epochs(9)

    return dies(life)


def names_epochs(error: Exception) -> bool:
    return re.search(r"epochs? (up to )?\d+|record, \d+", str(error)) is not None


@pytest.mark.parametrize("name", HISTORIES)
def test_p9_after_every_history_the_rows_are_there_or_the_start_is_refused(world: SinkWorld, name: str) -> None:
    check_history(world, name)


KINDS_IN_TURN = (
    *("delta", "iceberg by key", "delta by key", "delta"),
    *("delta by key", "iceberg", "delta", "delta by key"),
)
"""Fewer Iceberg tables than Delta tables: a commit of one takes five times as long."""
assert set(KINDS_IN_TURN) == set(LAKE_KINDS)


@pytest.mark.parametrize("name", HISTORIES)
def test_p9_after_every_history_the_rows_are_in_a_lakehouse_table_or_the_start_is_refused(
    tmp_path: Path, name: str
) -> None:
    """Each history with one kind of lakehouse table; `make test-long` has all of them."""
    check_history(SinkWorld(KINDS_IN_TURN[list(HISTORIES).index(name) % len(KINDS_IN_TURN)], tmp_path), name)


def check_history(world: SinkWorld, name: str) -> None:
    HISTORIES[name](world)
    if world.kind != "memory":
        assert (world.refused is not None) == (name in REFUSED or isinstance(world.refused, RollbackError))
    if world.refused is not None:
        assert names_epochs(world.refused), str(world.refused)
        if name in FOR_GOOD or isinstance(world.refused, RollbackError):
            return
        assert isinstance(world.refused, SinkStartError)
        assert world.start(choice=SinkStart.REBUILD)
    if world.kind == "memory" and name.startswith(("away", "written", "ahead")):
        return  # without a position nothing is expected of it
    world.check()
    world.epochs(2)
    assert world.start()
    world.check()


@pytest.mark.parametrize("age", range(11))
def test_p9_a_backup_of_every_age_is_brought_up_to_date_or_refused_with_the_epochs_that_are_gone(
    world: SinkWorld, age: int
) -> None:
    if world.kind == "memory":
        return  # it has no backups
    assert world.start()
    world.backup("0")
    for number in range(1, 11):
        world.epochs(1)
        world.backup(str(number))
    world.restore(str(age))
    retained = age >= 10 - 3
    assert world.start() == retained
    if not retained:
        assert world.refused is not None
        assert re.search(r"epochs \d+ to 8 are no longer retained", str(world.refused)), str(world.refused)
        assert world.start(choice=SinkStart.REBUILD)
    world.check()


# A death before a step finds nearly the same as one after the step before it.
@pytest.mark.parametrize(
    ("at", "after"),
    [
        (1, False),
        *((at, True) for at in range(1, 9)),
        *(pytest.param(at, False, marks=pytest.mark.long) for at in range(2, 9)),
    ],
)
def test_p3_a_process_killed_at_each_step_of_its_sink_loses_nothing(world: SinkWorld, at: int, *, after: bool) -> None:
    begun(world, 4)
    assert dies_in_a_life(world, at=at, after=after)
    assert world.start()
    world.epochs(1)
    world.check()


@pytest.mark.parametrize(
    ("at", "fault"),
    [
        (1, Fault.CRASH_BEFORE),
        *((at, Fault.CRASH_AFTER) for at in range(1, 17)),
        *(pytest.param(at, Fault.CRASH_BEFORE, marks=pytest.mark.long) for at in range(2, 17)),
    ],
)
def test_p3_a_process_killed_at_each_write_of_its_log_loses_nothing(world: SinkWorld, at: int, fault: Fault) -> None:
    begun(world, 4)
    writes = iter(range(1, 1_000_000))
    store = FaultStore(world.disk, lambda o: fault if o.verb.writes and next(writes) == at else None)

    def life() -> None:
        assert world.start(store=store)
        world.epochs(9)

    assert dies(life)
    assert world.start()
    world.epochs(1)
    world.check()


@pytest.mark.parametrize("at", range(1, 4))
@pytest.mark.parametrize("after", [False, True])
def test_p3_a_process_killed_while_it_rebuilds_a_sink_leaves_it_right_or_refused(
    world: SinkWorld, at: int, *, after: bool
) -> None:
    if world.kind == "memory":
        return
    begun(world)
    world.delete()
    assert dies(lambda: world.start(sinks=[Mortal(world.sink, at=at, after=after)], choice=SinkStart.REBUILD))
    if not world.start():
        assert isinstance(world.refused, SinkStartError)
        assert world.start(choice=SinkStart.REBUILD)
    world.check()


def test_a_sink_renamed_with_undelivered_epochs_is_refused_under_both_names(world: SinkWorld) -> None:
    begun(world)
    world.commit()
    world.sink_id = "renamed"
    world.memory = type(world.memory)("renamed")
    assert not world.start()
    assert isinstance(world.refused, SinkStartError | InputError)
    if world.kind == "memory":
        assert names_epochs(world.refused)
    assert not world.start(abandon=["out"]) or world.kind == "memory"


def test_a_sink_of_another_job_is_refused_and_its_owner_named(world: SinkWorld) -> None:
    if world.kind == "memory":
        return
    begun(world)
    other = world.other("elsewhere", job="other")
    assert not other.start()
    assert "belongs to counts/out" in str(other.refused)


def test_accepting_the_gap_keeps_what_is_there_and_loses_only_the_epochs_that_were_named(world: SinkWorld) -> None:
    if world.kind != "parquet":
        return  # the only one whose rows tell which changes it got
    assert world.start()
    world.epochs(2)
    world.backup("two")
    world.epochs(8)
    world.restore("two")
    assert not world.start()
    assert "epochs 4 to 8 are no longer retained" in str(world.refused)
    assert world.start(choice=SinkStart.ACCEPT_GAP)
    world.epochs(1)
    assert world.start()
    assert world.rows() == weighed(model(0, 2), model(7, 11))


def weighed(*parts: "Counter[tuple[str, int]]") -> "Counter[tuple[str, int]]":
    total: Counter[tuple[str, int]] = Counter()
    for part in parts:
        total.update(part)
    return Counter({row: weight for row, weight in total.items() if weight})


@pytest.mark.parametrize("seed", range(examples(12)))
def test_p9_random_histories_end_with_the_rows_of_the_model_or_a_refusal(world: SinkWorld, seed: int) -> None:
    if world.kind == "memory":
        return
    chance = random.Random(f"{world.kind} {seed}")
    assert world.start()
    world.backup("0")
    for number in range(1, 25):
        match chance.randrange(9):
            case 0:
                world.backup(str(number))
            case 1:
                world.restore(chance.choice(list(world.backups)))
            case 2:
                world.delete()
            case 3:
                world.move(rows=chance.random() < 0.5)
            case 4:
                world.commit(rows=chance.random() < 0.7)  # and the process ends
            case 5:
                world.parallelism = chance.choice([1, 2])
            case 6:
                dies_in_a_life(world, at=chance.randrange(1, 4), after=chance.random() < 0.5)
            case _:
                world.epochs(chance.randrange(1, 5), rows=chance.random() < 0.8)
                continue
        if not world.start():
            assert world.refused is not None
            assert names_epochs(world.refused), str(world.refused)
            assert world.start(choice=SinkStart.REBUILD), str(world.refused)
        world.check()
    world.check()
