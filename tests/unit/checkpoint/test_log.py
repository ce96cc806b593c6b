"""Appending when answers get lost, and refusing what cannot be read without writing anything."""

from collections.abc import Callable

import pytest
from unit.checkpoint.place import MailSink, Place

from statebed.checkpoint import CheckpointLog, DamagePolicy, RollbackPolicy, Run
from statebed.checkpoint.log import APPEND_ATTEMPTS
from statebed.errors import (
    BrokenLogError,
    CorruptObjectError,
    CorruptRecordError,
    FencedError,
    MissingFileError,
    NewerFormatError,
    OutcomeUnknownError,
    StatebedError,
    StoreUnavailableError,
)
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.digest import crc32c
from statebed.format.sealed import seal
from statebed.storage import ScopedStore
from statebed.testing.faults import Fault, FaultStore, Operation, Verb


class Line:
    """A way to the disk on which the puts of records fail as told."""

    def __init__(self, place: Place) -> None:
        self.faults: list[tuple[Verb, Fault]] = []
        self.store = FaultStore(place.disk, self._fault)

    def _fault(self, operation: Operation) -> Fault | None:
        if operation.path.endswith("checkpoint.metadata") and self.faults and operation.verb is self.faults[0][0]:
            return self.faults.pop(0)[1]
        return None


@pytest.fixture
def line(place: Place) -> Line:
    return Line(place)


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.LOSE_WRITE])
@pytest.mark.parametrize("times", [1, 3, APPEND_ATTEMPTS - 1])
def test_p1_a_lost_answer_is_asked_for_again_until_the_record_is_known_to_be_ours(
    place: Place, line: Line, fault: Fault, times: int
) -> None:
    run = place.open(through=line.store)
    line.faults = [(Verb.PUT_IF_ABSENT, fault)] * times
    record = place.commit(run)
    assert place.backend.load_checkpoint_metadata("job", 2).nonce == record.nonce
    assert place.commit(run).epoch == 3


def test_a_lost_answer_while_opening_opens_one_run(place: Place, line: Line) -> None:
    line.faults = [(Verb.PUT_IF_ABSENT, Fault.LOSE_ANSWER)]
    assert place.open(through=line.store).number == 1


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.LOSE_WRITE])
def test_when_no_answer_arrives_the_outcome_is_unknown_and_the_run_is_dead(
    place: Place, line: Line, fault: Fault
) -> None:
    run = place.open(through=line.store)
    line.faults = [(Verb.PUT_IF_ABSENT, fault)] * APPEND_ATTEMPTS
    with pytest.raises(OutcomeUnknownError):
        place.commit(run)
    for call in (lambda: place.commit(run), run.clean_up, run.serve_requests, run.check_live):
        with pytest.raises(OutcomeUnknownError):
            call()
    following = place.open()
    assert following.head.base == (2 if fault is Fault.LOSE_ANSWER else 0)


def test_p3_a_failure_after_the_put_never_fences_a_run_by_its_own_record(place: Place, line: Line) -> None:
    run = place.open(through=line.store)
    line.faults = [(Verb.GET, Fault.UNAVAILABLE)]  # the look at the record before, after the put succeeded
    assert place.commit(run).epoch == 2
    line.faults = [(Verb.PUT_IF_ABSENT, Fault.LOSE_ANSWER), (Verb.PUT_IF_ABSENT, Fault.UNAVAILABLE)]
    assert place.commit(run).epoch == 3


def test_a_put_that_certainly_had_no_effect_leaves_the_run_alive(place: Place, line: Line) -> None:
    run = place.open(through=line.store)
    line.faults = [(Verb.PUT_IF_ABSENT, Fault.UNAVAILABLE)]
    with pytest.raises(StoreUnavailableError):
        place.commit(run)
    assert place.commit(run).epoch == 2


def test_p3_a_superseded_run_finds_its_number_taken_and_stays_dead(place: Place) -> None:
    old = place.open()
    new = place.open()
    for _ in range(2):
        with pytest.raises(FencedError, match="run 2"):
            place.commit(old)
    assert place.commit(new).epoch == 3


def test_p3_a_run_superseded_by_a_newer_statebed_is_fenced_too(place: Place) -> None:
    old = place.open()
    newer = place.open().head
    place.store.put(names.record(2), with_version(seal(newer), 2))
    with pytest.raises(FencedError):
        place.commit(old)


def leave_behind(place: Place, epochs: int) -> list[Run]:
    """Runs that stand one behind the other, all superseded, and their records deleted."""
    zombies = [place.open(epochs=2) for _ in range(3)]
    live = place.open(epochs=2)
    for _ in range(epochs):
        place.commit(live)
    live.clean_up()
    assert place.store.head(names.record(4)) is None
    return zombies


def test_p3_a_zombie_whose_number_was_collected_does_not_commit(place: Place) -> None:
    zombie = leave_behind(place, 5)[1]
    with pytest.raises(FencedError, match="cleaned up"):
        place.commit(zombie)


def test_p3_zombies_do_not_vouch_for_each_other(place: Place) -> None:
    for zombie in leave_behind(place, 5):  # each puts the record that the next one looks for
        with pytest.raises(FencedError):
            place.commit(zombie)


def test_p3_an_opener_that_found_nothing_but_a_log_that_moved_on_does_not_win_number_one(place: Place) -> None:
    leave_behind(place, 5)
    stale = pb.CheckpointMetadata(job_id="job", epoch=1, run=1, kind=pb.RUN_START, nonce="stale", min_epoch=1)
    live = place.open(epochs=2)

    def moves_on(operation: Operation) -> None:
        if operation.verb is Verb.HEAD:  # whatever is looked up is deleted before the answer comes
            for _ in range(3):
                place.commit(live)
            live.clean_up()

    slow = CheckpointLog(ScopedStore(FaultStore(place.disk, before=moves_on), "job"), "job")
    with pytest.raises(FencedError, match="cleaned up"):
        slow.append(stale)


def test_p3_a_zombie_whose_next_number_was_collected_is_not_live(place: Place, mail: MailSink) -> None:
    for zombie in leave_behind(place, 5):
        with pytest.raises(FencedError):
            zombie.check_live()


# ---- bad input: each its own error, and nothing is written -----------------------------------------------------------


def with_version(sealed: bytes, version: int) -> bytes:
    record = pb.CheckpointMetadata.FromString(sealed)
    record.format_version = version
    record.ClearField("crc32c")
    body = record.SerializeToString(deterministic=True)
    return body + sealed[-5:-4] + crc32c(body).to_bytes(4, "little")


def refused(place: Place, kind: type[StatebedError], damage: DamagePolicy = DamagePolicy.REFUSE) -> StatebedError:
    before = place.contents()
    with pytest.raises(StatebedError) as caught:
        place.open(damage=damage)
    assert type(caught.value) is kind
    assert place.contents() == before, "something was written"
    assert all((caught.value.code, caught.value.what, caught.value.where, caught.value.fix))
    return caught.value


def test_p7_a_record_cut_short_anywhere_is_refused(place: Place) -> None:
    run = place.open()
    place.commit(run)
    whole = place.store.get(names.record(2))
    for length in range(len(whole)):
        place.store.put(names.record(2), whole[:length])
        refused(place, CorruptRecordError)


def test_p7_a_record_with_any_byte_flipped_is_refused(place: Place) -> None:
    run = place.open()
    place.commit(run)
    whole = place.store.get(names.record(2))
    for offset in range(len(whole)):
        place.store.put(names.record(2), whole[:offset] + bytes([whole[offset] ^ 0x10]) + whole[offset + 1 :])
        refused(place, CorruptRecordError)


@pytest.mark.parametrize("damage", list(DamagePolicy))
def test_a_newer_format_is_told_apart_from_damage_and_never_fallen_behind(place: Place, damage: DamagePolicy) -> None:
    place.commit(place.open())
    place.store.put(names.record(2), with_version(place.store.get(names.record(2)), 2))
    assert "upgrade" in refused(place, NewerFormatError, damage).fix


def test_a_record_of_another_job_or_another_number_is_refused(place: Place) -> None:
    run = place.open()
    place.commit(run)
    mine = place.store.get(names.record(2))
    other = pb.CheckpointMetadata.FromString(mine)
    other.job_id = "other"
    place.store.put(names.record(2), seal(other))
    assert "'other'" in refused(place, CorruptRecordError).where
    place.store.put(names.record(2), place.store.get(names.record(1)))
    refused(place, CorruptRecordError)


def data_path(record: pb.CheckpointMetadata) -> str:
    return record.outbox[0].path


def metadata_path(record: pb.CheckpointMetadata) -> str:
    return record.operators[0].subtasks[1].path


@pytest.mark.parametrize("path_of", [data_path, metadata_path])
def test_p7_a_record_that_names_a_missing_file_is_refused(
    place: Place, path_of: Callable[[pb.CheckpointMetadata], str]
) -> None:
    record = place.commit(place.open())
    place.store.delete(path_of(record))
    assert path_of(record) in refused(place, MissingFileError).where


def test_p7_a_record_that_names_a_file_of_another_size_is_refused(place: Place) -> None:
    """Opening reads no data and no output: it compares sizes, and every reader of a file compares its checksums."""
    record = place.commit(place.open())
    state = place.backend.load_operator_metadata("job", "op", record.epoch)
    assert state is not None
    files = [file.path for part in state.tables["t"].subtasks.values() for file in part.files]
    for path in [*files, data_path(record), metadata_path(record)]:
        kept = place.store.get(path)
        for damaged in (b"", kept[:-1], kept + b"more"):
            place.store.put(path, damaged)
            assert path in refused(place, CorruptObjectError).where
        place.store.put(path, kept)
    place.open()


@pytest.mark.parametrize("number", [1, 3, 4])
def test_a_retained_record_that_somebody_removed_is_named(place: Place, number: int) -> None:
    run = place.open()
    for _ in range(4):
        place.commit(run)
    place.store.delete(names.record(number))
    assert f"record {number}" in refused(place, BrokenLogError).what


def test_p7_falling_back_forks_to_the_newest_intact_epoch_and_says_what_was_skipped(place: Place) -> None:
    run = place.open()
    records = [place.commit(run) for _ in range(3)]
    place.store.delete(metadata_path(records[2]))
    place.store.put(metadata_path(records[1]), b"")
    fallen = place.open(damage=DamagePolicy.FALL_BACK)
    assert (fallen.head.epoch, fallen.head.base) == (5, 2)
    assert fallen.lineage != run.lineage
    assert [skip.epoch for skip in fallen.recovery.skipped] == [4, 3]


def test_falling_back_past_a_damaged_record_that_was_published_must_be_asked_for(place: Place) -> None:
    run = place.open()
    place.commit(run, sinks=("mail",))
    place.commit(run, sinks=("mail",))
    for epoch in (2, 3):
        run.mark_published(epoch, "mail")
    place.store.put(names.record(3), b"damaged")
    before = place.contents()
    with pytest.raises(StatebedError, match="published") as caught:
        place.open(damage=DamagePolicy.FALL_BACK)
    assert caught.value.code == "ROLLBACK_PAST_PUBLISHED"
    assert place.contents() == before
    fallen = place.open(damage=DamagePolicy.FALL_BACK, rollback=RollbackPolicy.ALLOW)
    assert (fallen.head.epoch, fallen.head.base) == (4, 2)
