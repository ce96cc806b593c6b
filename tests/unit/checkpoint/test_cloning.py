"""A clone begins where the other job was, and then goes its own way."""

from pathlib import Path
from typing import Any

import pytest

import statebed as sb
from statebed.checkpoint import CheckpointLog, Origin
from statebed.checkpoint.clone import clone_job
from statebed.errors import EpochNotRetainedError, InputError, JobNotFoundError
from statebed.storage import LocalStore, ScopedStore


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
