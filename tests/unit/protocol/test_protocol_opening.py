"""Specifications of opening: the head, what was skipped, forks and what they leave behind."""

import pytest

from statebed.errors import (
    BrokenLogError,
    CorruptRecordError,
    EpochNotRetainedError,
    JobNotFoundError,
    RollbackError,
    SavepointError,
)
from statebed.format import checkpoint_pb2 as pb
from statebed.protocol import DamagePolicy, Origin, Recovery, RollbackPolicy, SkippedRecord
from statebed.protocol.base_choice import (
    LogSlot,
    Observation,
    abandoned_epochs,
    check_readable,
    check_rollback,
    check_unbroken,
    recover,
    resolve_epoch,
    resolve_savepoint,
)


def record(epoch: int, min_epoch: int = 1) -> pb.CheckpointMetadata:
    pins = [pb.Pin(savepoint="monday", epoch=2)]
    return pb.CheckpointMetadata(job_id="job", epoch=epoch, kind=pb.EPOCH, min_epoch=min_epoch, pins=pins)


def seen(epoch: int) -> Observation:
    return Observation(epoch, LogSlot.RECORD, record(epoch))


def nothing(epoch: int) -> Observation:
    return Observation(epoch, LogSlot.NOTHING)


def damage(epoch: int) -> Observation:
    return Observation(epoch, LogSlot.DAMAGE, problem="cut short")


def test_recover_of_nothing_is_a_job_that_never_ran() -> None:
    assert recover([]) == Recovery(0, None, ())
    assert not recover([]).damaged


def test_recover_passes_over_an_epoch_that_was_begun_and_says_so() -> None:
    found = recover([nothing(6), seen(5)])
    assert (found.last_number, found.head and found.head.epoch, found.damaged) == (5, 5, False)
    assert [skip.epoch for skip in found.skipped] == [6]
    assert "never committed" in found.skipped[0].reason


def test_recover_counts_a_damaged_record_as_taken_so_that_its_number_is_not_used_again() -> None:
    found = recover([nothing(8), damage(7), damage(6), seen(5)])
    assert (found.last_number, found.head and found.head.epoch, found.damaged) == (7, 5, True)
    assert [skip.epoch for skip in found.skipped] == [8, 7, 6]
    assert found.skipped[1].reason == "cut short"


def test_recover_with_only_folders_is_a_job_that_never_committed() -> None:
    found = recover([nothing(2), nothing(1)])
    assert (found.last_number, found.head, found.damaged) == (0, None, False)


def test_p7_a_damaged_head_is_refused_and_the_loss_is_named() -> None:
    with pytest.raises(CorruptRecordError, match="newest record, 7") as caught:
        check_readable(recover([damage(7), seen(5)]), job_id="job", policy=DamagePolicy.REFUSE)
    assert "7: cut short" in caught.value.where
    assert "epoch 5" in caught.value.fix


def test_p7_a_damaged_head_is_fallen_behind_only_when_asked() -> None:
    check_readable(recover([damage(7), seen(5)]), job_id="job", policy=DamagePolicy.FALL_BACK)


def test_falling_back_needs_something_to_fall_back_to() -> None:
    with pytest.raises(CorruptRecordError, match="no record of this job"):
        check_readable(recover([damage(2), damage(1)]), job_id="job", policy=DamagePolicy.FALL_BACK)


def test_the_log_is_looked_at_again_before_it_is_called_broken() -> None:
    assert check_unbroken(record(5), previous_exists=True, last_look=False)
    assert not check_unbroken(record(5), previous_exists=False, last_look=False)
    with pytest.raises(BrokenLogError, match="record 4"):
        check_unbroken(record(5), previous_exists=False, last_look=True)


@pytest.mark.parametrize("epoch", [0, 3, 11])
def test_fork_below_min_epoch_or_above_the_head_is_refused(epoch: int) -> None:
    with pytest.raises(EpochNotRetainedError, match="4 to 10"):
        resolve_epoch(Recovery(10, record(10, min_epoch=4), ()), epoch, job_id="job")


@pytest.mark.parametrize("epoch", [4, 10])
def test_fork_to_either_end_of_what_is_retained_is_allowed(epoch: int) -> None:
    assert resolve_epoch(Recovery(10, record(10, min_epoch=4), ()), epoch, job_id="job") == epoch


def test_an_epoch_of_a_job_that_never_ran_is_refused() -> None:
    with pytest.raises(JobNotFoundError):
        resolve_epoch(Recovery(0, None, ()), 1, job_id="job")


def test_savepoints_are_those_of_the_head() -> None:
    recovery = Recovery(10, record(10), ())
    assert resolve_savepoint(recovery, "monday", job_id="job").epoch == 2
    with pytest.raises(SavepointError, match="tuesday") as caught:
        resolve_savepoint(recovery, "tuesday", job_id="job")
    assert "monday" in caught.value.where
    with pytest.raises(SavepointError):
        resolve_savepoint(Recovery(0, None, ()), "monday", job_id="job")


def test_abandoned_are_the_epochs_of_the_present_lineage_that_do_not_lead_to_the_base() -> None:
    assert abandoned_epochs([2, 3, 4, 5], kept=[2, 3]) == [4, 5]


def test_abandoned_may_be_older_than_the_base_when_a_fork_returns_to_another_branch() -> None:
    # 2-3-4-5, forked at 3 to 7-8, returned to 5 with 10, and now back to 8: 4, 5 and 10 stay behind.
    assert abandoned_epochs([2, 3, 4, 5, 10], kept=[2, 3, 7, 8]) == [4, 5, 10]


def test_rollback_past_published_epochs_must_be_asked_for() -> None:
    published = {4: ["out"], 5: [], 6: ["out", "other"]}
    with pytest.raises(RollbackError, match="epochs 4 to 6") as caught:
        check_rollback(published, base=3, job_id="job", policy=RollbackPolicy.REFUSE)
    assert "other, out" in caught.value.where
    check_rollback(published, base=3, job_id="job", policy=RollbackPolicy.ALLOW)


def test_rollback_past_unpublished_epochs_needs_no_permission() -> None:
    check_rollback({4: [], 5: ()}, base=3, job_id="job", policy=RollbackPolicy.REFUSE)


def test_origin_is_the_head_unless_something_is_named() -> None:
    assert Origin().is_head
    assert not Origin(epoch=3).is_head
    assert not Origin(savepoint="monday").is_head
    assert SkippedRecord(3, "why").reason == "why"
