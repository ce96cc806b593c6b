"""A clone begins where the other job was, and then goes its own way."""

from pathlib import Path
from typing import Any

import pytest

import statebed as sb
from statebed.checkpoint import CheckpointLog, Origin
from statebed.checkpoint.clone import clone_job, cloned
from statebed.errors import EpochNotRetainedError, InputError, JobNotFoundError, StatebedError
from statebed.format import names
from statebed.storage import LocalStore, MemoryStore, ScopedStore
from statebed.testing.faults import Fault, FaultStore, Operation


def counting(name: str) -> sb.Flow:
    flow = sb.Flow(name)
    words = flow.source("words", "word string, ts timestamp", watermark=("ts", "0s"))
    words.key_by("word", name="counts").agg(n=sb.count())
    return flow


def rows(*words: str) -> list[dict[str, Any]]:
    return [{"word": word, "ts": "2024-01-01T00:00:00"} for word in words]


def counts(test: Any) -> dict[str, int]:
    found = test.state("counts", "groups")
    return dict(zip(found["word"].to_pylist(), found["n"].to_pylist(), strict=True))


def test_a_clone_has_the_state_of_its_epoch_and_both_go_on_by_themselves(tmp_path: Path) -> None:
    store, elsewhere = LocalStore(tmp_path / "state"), LocalStore(tmp_path / "other")
    with sb.testing.run(counting("first"), store=store, parallelism=2) as test:
        test.feed("words", rows("a", "a", "b"))
        test.rescale(3)
        test.feed("words", rows("c"))
        old = test.epoch
        test.feed("words", rows("a"))
        assert clone_job(store.url, "first", "newest") == test.epoch
        assert clone_job(store.url, "first", "older", origin=Origin(epoch=old), to_state=elsewhere.url) == old
        test.feed("words", rows("first only"))
        expected = counts(test)
    with sb.testing.run(counting("newest"), store=store, parallelism=2) as test:
        assert counts(test) == {"a": 3, "b": 1, "c": 1}
        test.feed("words", rows("newest only"))
        test.crash()
        assert counts(test) == {"a": 3, "b": 1, "c": 1, "newest only": 1}
    with sb.testing.run(counting("older"), store=elsewhere) as test:
        assert counts(test) == {"a": 2, "b": 1, "c": 1}
    with sb.testing.run(counting("first"), store=store) as test:
        assert counts(test) == expected


def test_p2_a_clone_that_was_cut_short_is_none_and_is_finished_by_the_same_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    with sb.testing.run(counting("first"), store=store) as test:
        test.feed("words", rows("a"))
    with monkeypatch.context() as patched:
        patched.setattr(ScopedStore, "put_if_absent", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            clone_job(store.url, "first", "second")
    assert CheckpointLog(ScopedStore(store, "second"), "second").head() is None
    clone_job(store.url, "first", "second")
    with sb.testing.run(counting("second"), store=store) as test:
        assert counts(test) == {"a": 1}


def test_what_cannot_be_cloned_is_refused(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with pytest.raises(JobNotFoundError):
        clone_job(store.url, "first", "second")
    with sb.testing.run(counting("first"), store=store) as test:
        test.feed("words", rows("a"))
    with pytest.raises(EpochNotRetainedError):
        clone_job(store.url, "first", "second", origin=Origin(epoch=99))
    clone_job(store.url, "first", "second")
    with pytest.raises(InputError, match="already exists"):
        clone_job(store.url, "first", "second")


SPOILS = [Fault.STORE_HALF, Fault.STORE_FLIPPED, Fault.STORE_NOTHING]


@pytest.mark.parametrize("fault", SPOILS)
@pytest.mark.parametrize("spoiled", ["/data/", "/operator-", "checkpoint.metadata"])
def test_p1_a_clone_whose_objects_the_store_spoils_is_reported(fault: Fault, spoiled: str) -> None:
    disk = MemoryStore()
    with sb.testing.run(counting("first"), store=disk) as test:
        test.feed("words", rows("a"))
    source, target = (ScopedStore(disk, name) for name in ("first", "second"))
    spoiling = FaultStore(target, lambda o: fault if o.verb.writes and spoiled in o.path else None)
    with pytest.raises(StatebedError) as lost:
        cloned(source, "first", spoiling, "second", origin=Origin())
    assert spoiled in lost.value.where
    log = CheckpointLog(target, "second")
    assert log.store.head(names.record(1)) is None or fault is not Fault.STORE_NOTHING
    if "checkpoint.metadata" not in spoiled:
        assert log.head() is None
        assert cloned(source, "first", target, "second", origin=Origin())


def test_of_two_clones_with_one_name_one_is_refused() -> None:
    """Both find the name unused; the second is not told that its copy is there."""
    disk = MemoryStore()
    for job in ("first", "other"):
        with sb.testing.run(counting(job), store=disk) as test:
            test.feed("words", rows(job))
    target = ScopedStore(disk, "second")

    def overtake(operation: Operation) -> None:
        if operation.verb.writes and operation.path.endswith("checkpoint.metadata"):
            cloned(ScopedStore(disk, "other"), "other", target, "second", origin=Origin())

    with pytest.raises(InputError, match="already exists"):
        cloned(ScopedStore(disk, "first"), "first", FaultStore(target, before=overtake), "second", origin=Origin())
    with sb.testing.run(counting("second"), store=disk) as test:
        assert counts(test) == {"other": 1}
