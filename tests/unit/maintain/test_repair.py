"""Repair: finds the newest intact epoch, reports what is lost, and lets the job continue from there."""

import random
from collections.abc import Iterator

import pytest
from maintained_job import JOB, MaintainedJob, maintained_job

from statebed.checkpoint import CheckpointLog
from statebed.errors import BrokenLogError, CleanupError, FencedError, FormatError, NothingIntactError, ProtocolError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.inspect.verification import ObjectKind, verify_log
from statebed.maintain import RepairPlan, Through, drop_savepoint, plan_repair, remove_garbage, repair
from statebed.protocol.records import data_epoch_of


@pytest.fixture
def job() -> Iterator[MaintainedJob]:
    """Epochs 2 to 7, all published."""
    with maintained_job() as made:
        made.open()
        for _ in range(6):
            made.epoch()
        yield made


def log_of(job: MaintainedJob) -> CheckpointLog:
    return CheckpointLog(job.store, JOB, job.environment)


def planned(job: MaintainedJob) -> RepairPlan:
    return plan_repair(log_of(job), verify_log(log_of(job)))


def flip(job: MaintainedJob, path: str) -> None:
    data = bytearray(job.store.get(path))
    data[len(data) // 2] ^= 4
    job.store.put(path, bytes(data))


def own_file(job: MaintainedJob, epoch: int, part: str = "data/totals-counts") -> str:
    """A file that this epoch wrote."""
    return next(info.path for info in job.store.list(names.epoch_folder(epoch)) if part in info.path)


def check_goes_on(job: MaintainedJob, base: int) -> None:
    """The job starts by itself, on the state of the epoch; its sink holds what its lineage gave; all is whole."""
    job.open()
    assert data_epoch_of(job.run.head) == base
    assert job.read(job.run.head) == job.state_after(base)
    record = job.epoch(salt=9)
    assert job.read(record) == job.states[record.epoch]
    assert job.sink.epochs == [*range(2, base + 1), record.epoch]
    assert verify_log(log_of(job), epoch=record.epoch).whole
    assert verify_log(log_of(job)).head_whole


def test_a_whole_job_needs_no_repair(job: MaintainedJob) -> None:
    plan = planned(job)
    assert (plan.needed, plan.base, plan.lost, plan.published) == (False, 7, (), {})
    assert repair(log_of(job), plan) is None
    job.epoch()  # nothing fenced it


def test_p7_a_damaged_data_file_is_left_behind_by_a_fork_to_the_epoch_before_it(job: MaintainedJob) -> None:
    flip(job, own_file(job, 5))
    plan = planned(job)
    assert (plan.needed, plan.base, plan.lost) == (True, 4, (5, 6, 7))
    assert plan.published == dict.fromkeys((5, 6, 7), ("table",))
    assert plan.lost_rows == 3 * 2 * 12
    changed = repair(log_of(job), plan)
    assert changed is not None
    assert changed.epoch == 8
    with pytest.raises(FencedError):
        job.run.commit(job.run.carry_over())
    check_goes_on(job, 4)


def test_a_job_that_moved_on_since_it_was_verified_is_not_forked(job: MaintainedJob) -> None:
    whole = job.store.get(own_file(job, 7))
    path = own_file(job, 7)
    flip(job, path)
    plan = planned(job)
    assert plan.needed
    job.store.put(path, whole)
    job.epoch()
    with pytest.raises(ProtocolError, match="advanced from record 7 to 8"):
        repair(log_of(job), plan)
    job.epoch()  # nothing fenced it


@pytest.mark.parametrize("trouble", ["damaged", "removed"])
def test_output_that_its_sinks_have_is_needed_no_more(job: MaintainedJob, trouble: str) -> None:
    path = own_file(job, 7, "outbox")
    if trouble == "damaged":
        flip(job, path)
    else:
        job.store.delete(path)
    found = verify_log(log_of(job))
    assert [one.path for one in found.findings] == [path]
    assert not plan_repair(log_of(job), found).needed
    job.open()
    record = job.epoch()
    assert verify_log(log_of(job), epoch=record.epoch).whole


@pytest.mark.parametrize("trouble", ["damaged", "removed"])
def test_p7_without_its_newest_record_the_job_goes_on_from_the_one_before(job: MaintainedJob, trouble: str) -> None:
    if trouble == "damaged":
        flip(job, names.record(7))
        with pytest.raises(FormatError):
            job.open()
    else:
        job.store.delete(names.record(7))
    plan = planned(job)
    assert (plan.needed, plan.base, plan.lost, plan.lost_rows) == (True, 6, (7,), None)
    assert plan.published == {7: ("table",)}
    repair(log_of(job), plan)
    check_goes_on(job, 6)


@pytest.mark.parametrize("number", [3, 6])
def test_p7_a_record_that_was_removed_from_the_middle_costs_the_epochs_before_it_and_no_state(
    job: MaintainedJob, number: int
) -> None:
    job.store.delete(names.record(number))
    with pytest.raises(BrokenLogError):
        job.open()
    assert not verify_log(log_of(job)).head_whole
    plan = planned(job)
    assert (plan.needed, plan.base, plan.lost) == (True, 7, ())
    assert plan.forgotten == tuple(range(1, number))
    repair(log_of(job), plan)
    check_goes_on(job, 7)
    job.run.clean_up()
    assert verify_log(log_of(job)).whole


def test_output_that_a_sink_still_waits_for_is_made_again(job: MaintainedJob) -> None:
    job.publishes = False
    job.epoch()
    job.epoch()
    flip(job, own_file(job, 8, "outbox"))
    plan = planned(job)
    assert (plan.needed, plan.base, plan.lost, plan.published) == (True, 7, (8, 9), {})
    repair(log_of(job), plan)
    job.publishes = True
    check_goes_on(job, 7)


def test_damage_that_the_newest_epoch_does_not_need_is_left_as_it_is(job: MaintainedJob) -> None:
    flip(job, own_file(job, 4, "operator-totals-0"))
    plan = planned(job)
    assert not plan.needed
    assert [one.kind for one in plan.remaining] == [ObjectKind.SUBTASK_METADATA]


def test_a_savepoint_is_the_last_resort(job: MaintainedJob) -> None:
    job.run.add_request(pb.Request(savepoint=pb.SavepointRequest(name="monday", epoch=4)))
    record = job.epoch()
    for number in range(1, record.epoch):
        flip(job, names.record(number))
    flip(job, own_file(job, record.epoch))
    plan = planned(job)
    assert (plan.base, plan.savepoint, plan.lost) == (4, "monday", (5, 6, 7, 8))
    repair(log_of(job), plan)
    job.open()
    assert job.read(job.run.head) == job.states[4]


def test_p5_a_damaged_savepoint_holds_clean_up_until_it_is_dropped(job: MaintainedJob) -> None:
    job.run.add_request(pb.Request(savepoint=pb.SavepointRequest(name="monday", epoch=4)))
    flip(job, job.epoch().pins[0].path)
    plan = planned(job)
    assert not plan.needed
    assert [one.savepoints for one in plan.remaining] == [("monday",)]
    with pytest.raises(CleanupError):
        remove_garbage(log_of(job), through=Through.OWN_RUN, grace_us=0)
    drop_savepoint(log_of(job), "monday", through=Through.OWN_RUN)
    remove_garbage(log_of(job), through=Through.OWN_RUN, grace_us=0)
    assert verify_log(log_of(job)).whole


def test_where_nothing_is_whole_that_is_an_error(job: MaintainedJob) -> None:
    for info in list(job.store.list(names.CHECKPOINTS)):
        if names.is_metadata(info.path):
            flip(job, info.path)
    with pytest.raises(NothingIntactError, match="no epoch and no savepoint"):
        planned(job)


def test_p7_whatever_single_file_is_damaged_or_gone_a_repair_brings_the_job_back() -> None:
    chance = random.Random(7)
    for number in range(8):
        with maintained_job() as job:
            job.open()
            for _ in range(4):
                job.epoch()
            paths = [info.path for info in job.store.list("")]
            path = chance.choice([path for path in paths if (names.epoch_of(path) or 0) > 2])
            if number % 2:
                job.store.delete(path)
            else:
                flip(job, path)
            plan = planned(job)
            repair(log_of(job), plan)
            try:
                check_goes_on(job, plan.base)
            except (ProtocolError, FormatError, AssertionError) as error:
                raise AssertionError(f"after damage to {path}, {plan}") from error
