"""A run whose records disappear: superseded by a newer run, or the state itself is gone."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from unit.checkpoint.place import JOB, MailSink, Place

from statebed.checkpoint import Publisher, Run
from statebed.checkpoint.log import CheckpointLog
from statebed.errors import FencedError, ProtocolError, StateGoneError
from statebed.format import names
from statebed.storage import LocalStore, ScopedStore
from statebed.testing.faults import FaultStore, Operation, Verb


def remove_everything(place: Place) -> None:
    for path in place.contents():
        place.disk.delete(path)


def remove_record(place: Place, epoch: int) -> None:
    place.store.delete(names.record(epoch))


LOSSES: dict[str, Callable[[Place, Run], None]] = {
    "the whole folder": lambda place, _: remove_everything(place),
    "the newest record": lambda place, run: remove_record(place, run.head.epoch),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_run_whose_state_disappears_is_not_called_fenced(place: Place, loss: str) -> None:
    run = place.open()
    place.commit(run)
    LOSSES[loss](place, run)
    with pytest.raises(StateGoneError, match="record 2") as gone:
        run.check_live()
    assert gone.value.exit_code == 1, "a supervisor may restart it"
    assert "mounted" in gone.value.fix


@pytest.mark.parametrize("loss", LOSSES)
def test_p1_a_commit_after_the_state_disappeared_is_not_acknowledged(place: Place, loss: str) -> None:
    run = place.open()
    place.commit(run)
    LOSSES[loss](place, run)
    with pytest.raises(StateGoneError):
        place.commit(run)
    with pytest.raises(StateGoneError):  # the run is dead
        place.commit(run)


def test_nothing_is_published_after_the_state_disappeared(place: Place, mail: MailSink) -> None:
    run = place.open()
    place.commit(run, sinks=("mail",))
    remove_everything(place)
    with pytest.raises(StateGoneError):
        Publisher(run, [mail]).publish_pending()
    assert not mail.sent


def test_a_record_that_disappears_between_the_put_and_the_look_is_gone_not_fenced(place: Place) -> None:
    removed: list[str] = []

    def remove(operation: Operation) -> None:
        if armed and operation.verb is Verb.GET and operation.path.endswith(names.record(3)):
            removed.append(operation.path)
            remove_everything(place)

    armed = False
    run = place.open(through=FaultStore(place.disk, before=remove))
    place.commit(run)
    armed = True
    place.store.put(names.record(3), place.store.get(names.record(2)))  # the number is taken, and then it is not
    with pytest.raises(StateGoneError):
        place.commit(run)
    assert removed


def test_p3_a_log_that_was_removed_and_begun_anew_by_another_run_fences(place: Place) -> None:
    run = place.open()
    for _ in range(3):
        place.commit(run)
    remove_everything(place)
    place.now_us += 1
    newer = place.open()
    with pytest.raises(FencedError, match="started again"):
        run.check_live()
    place.commit(newer)


def test_a_backup_put_in_place_of_the_state_is_no_newer_run(place: Place) -> None:
    run = place.open()
    place.commit(run)
    backup = place.contents()
    place.now_us += 1
    place.commit(run)
    remove_everything(place)
    for path, data in backup.items():
        place.disk.put(path, data)
    with pytest.raises(StateGoneError, match="record 3"):
        run.check_live()
    assert place.open().head.base == 2, "after a restart the job continues from the backup"


def test_p3_a_zombie_is_told_apart_from_lost_state(place: Place) -> None:
    zombie = place.open(epochs=1)
    place.commit(zombie)
    newer = place.open(epochs=1)
    for _ in range(6):
        place.now_us += 1
        place.commit(newer)
        newer.clean_up()
    assert not CheckpointLog(place.store, JOB).exists(zombie.next_epoch)
    with pytest.raises(FencedError):
        place.commit(zombie)
    with pytest.raises(FencedError):
        zombie.check_live()


def test_rm_rf_of_a_local_state_folder_in_mid_run_is_lost_state(tmp_path: Path, place: Place) -> None:
    run = Run.open(ScopedStore(LocalStore(tmp_path / "state"), JOB), JOB, environment=place.environment)
    shutil.rmtree(tmp_path / "state")
    for look in (run.check_live, lambda: run.commit(run.carry_over())):
        with pytest.raises(ProtocolError) as seen:
            look()
        assert isinstance(seen.value, StateGoneError)


def test_opening_against_a_busy_run_is_not_called_fenced(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = place.open()
    monkeypatch.setattr("statebed.checkpoint.run.OPEN_ATTEMPTS", 3)

    def commit_first(operation: Operation) -> None:
        if operation.verb is Verb.PUT_IF_ABSENT and operation.path.endswith("checkpoint.metadata"):
            place.commit(busy)

    with pytest.raises(ProtocolError, match="3 epochs") as refused:
        place.open(through=FaultStore(place.disk, before=commit_first))
    assert not isinstance(refused.value, FencedError)
    assert refused.value.exit_code == 1
