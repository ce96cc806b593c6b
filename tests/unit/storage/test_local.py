"""The local store: durable in the right order, safe against crashes, removals and other processes."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from statebed.errors import OutcomeUnknownError, PutIfAbsentError, StorageError, StoreNotWritableError
from statebed.storage import LocalStore, PutOutcome, probe_put_if_absent
from statebed.storage.local import STALE_AFTER_SECONDS
from statebed.storage.paths import TEMPORARY_FOLDER

Event = tuple[str, str]


class Recorder:
    """Every sync, link, rename, mkdir and unlink of the process, in order, with paths relative to the root."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root = root
        self.events: list[Event] = []
        real_fsync = os.fsync

        def fsync(descriptor: int) -> None:
            self._note("fsync", str(Path(f"/proc/self/fd/{descriptor}").readlink()))
            real_fsync(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)
        for name, target in (("link", 1), ("rename", 1), ("mkdir", 0), ("unlink", 0)):
            monkeypatch.setattr(os, name, self._noting(name, target, getattr(os, name)))

    def _noting(self, name: str, target: int, real: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = real(*args, **kwargs)
            self._note(name, os.fspath(args[target]))
            return result

        return wrapped

    def _note(self, name: str, path: str) -> None:
        relative = os.path.relpath(path, self._root)
        self.events.append((name, "TEMPORARY" if relative.startswith(f"{TEMPORARY_FOLDER}/") else relative))

    def position(self, event: Event) -> int:
        assert event in self.events, f"{event} never happened: {self.events}"
        return self.events.index(event)

    def last(self, event: Event) -> int:
        return len(self.events) - 1 - self.events[::-1].index(event)


@pytest.mark.parametrize(
    ("write", "naming"), [("put_if_absent", "link"), ("put", "rename")], ids=["put_if_absent", "put"]
)
def test_p1_a_write_syncs_the_file_then_names_it_then_syncs_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: str, naming: str
) -> None:
    root = tmp_path / "state"
    store = LocalStore(root)
    store.put("a/b/first", b"")
    recorder = Recorder(root, monkeypatch)
    getattr(store, write)("a/b/second", b"bytes")
    synced, named = recorder.position(("fsync", "TEMPORARY")), recorder.position((naming, "a/b/second"))
    assert synced < named < recorder.last(("fsync", "a/b"))


def test_p1_every_new_folder_is_synced_into_its_parent_before_the_write_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "new" / "state"
    recorder = Recorder(root, monkeypatch)
    LocalStore(root).put_if_absent("a/b/c", b"bytes")
    for folder, parent in (("a/b", "a"), ("a", "."), (".", ".."), ("..", "../..")):
        assert recorder.position(("mkdir", folder)) < recorder.last(("fsync", parent)), folder


def test_p1_a_folder_that_another_process_made_is_synced_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    recorder = Recorder(tmp_path, monkeypatch)
    LocalStore(tmp_path).put_if_absent("a/b/c", b"bytes")
    assert {("fsync", "a/b"), ("fsync", "a"), ("fsync", ".")} <= set(recorder.events)


def test_p1_exists_is_said_only_of_a_name_that_was_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    LocalStore(tmp_path).put_if_absent("a/b", b"theirs")
    recorder = Recorder(tmp_path, monkeypatch)
    assert LocalStore(tmp_path).put_if_absent("a/b", b"ours") is PutOutcome.EXISTS
    assert recorder.events[-1] == ("fsync", "a")


def test_p5_a_delete_syncs_the_folder_after_the_removal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    store.put("a/b", b"")
    store.put("a/c", b"")
    recorder = Recorder(tmp_path, monkeypatch)
    store.delete("a/b")
    assert recorder.events == [("unlink", "a/b"), ("fsync", "a")]


def test_the_usual_write_syncs_one_file_and_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    store.put("a/b/first", b"")
    recorder = Recorder(tmp_path, monkeypatch)
    store.put("a/b/second", b"")
    assert [event for event in recorder.events if event[0] == "fsync"] == [("fsync", "TEMPORARY"), ("fsync", "a/b")]


def test_a_failed_sync_of_the_folder_is_an_unknown_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    store.put("a/first", b"")
    real_fsync, synced = os.fsync, []

    def fail_on_the_second(descriptor: int) -> None:
        synced.append(descriptor)
        if len(synced) == 2:
            raise OSError(5, "Input/output error")
        real_fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail_on_the_second)
        with pytest.raises(OutcomeUnknownError, match="could not be synced"):
            store.put_if_absent("a/second", b"x")
    assert store.put_if_absent("a/second", b"x") is PutOutcome.EXISTS


def test_a_failed_write_of_the_bytes_leaves_no_object_and_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    store.put("a/first", b"")

    def fail(_descriptor: int, _data: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fail)
        with pytest.raises(StorageError, match="disk is full"):
            store.put_if_absent("a/second", b"x")
    assert store.head("a/second") is None
    assert list((tmp_path / TEMPORARY_FOLDER).iterdir()) == []


def test_no_temporary_file_remains_and_none_is_ever_listed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a/b", b"x")
    store.put_if_absent("a/b", b"y")
    assert list((tmp_path / TEMPORARY_FOLDER).iterdir()) == []
    (tmp_path / TEMPORARY_FOLDER / "left-by-a-crash").write_bytes(b"half")
    assert [info.path for info in store.list("")] == ["a/b"]
    assert store.list_level("").folders == ("a",)


def test_p5_a_stale_temporary_file_is_swept_and_a_fresh_one_is_not(tmp_path: Path) -> None:
    LocalStore(tmp_path).put("a", b"")
    stale, fresh = tmp_path / TEMPORARY_FOLDER / "stale", tmp_path / TEMPORARY_FOLDER / "fresh"
    for file in (stale, fresh):
        file.write_bytes(b"half")
    long_ago = time.time() - STALE_AFTER_SECONDS - 60
    os.utime(stale, (long_ago, long_ago))
    LocalStore(tmp_path).put("b", b"")
    assert not stale.exists()
    assert fresh.exists()


def test_a_writer_whose_temporary_file_was_swept_writes_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    real_link, calls = os.link, []

    def sweep_first(source: Path, target: Path, **kwargs: Any) -> None:
        calls.append(target)
        if len(calls) == 1:
            Path(source).unlink()
        real_link(source, target, **kwargs)

    monkeypatch.setattr(os, "link", sweep_first)
    assert store.put_if_absent("a/b", b"x") is PutOutcome.CREATED
    assert (len(calls), store.get("a/b")) == (2, b"x")


def test_folders_removed_by_one_thread_do_not_disturb_the_writes_of_others(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    until = time.monotonic() + 1.5

    def create_and_delete(number: int) -> int:
        rounds = 0
        while time.monotonic() < until:
            path = f"shared/deep/folder/{number}"
            assert store.put_if_absent(path, b"x") is PutOutcome.CREATED
            assert store.get(path) == b"x"
            store.delete(path)
            rounds += 1
        return rounds

    with ThreadPoolExecutor(4) as pool:
        assert min(pool.map(create_and_delete, range(4))) > 5
    assert [path.name for path in tmp_path.iterdir()] == [TEMPORARY_FOLDER]


CONTENDERS = """
import os, pathlib, sys
from statebed.storage import LocalStore
waiting, go = os.pipe()
children = []
for number in range(20):
    child = os.fork()
    if child == 0:
        os.close(go)
        os.read(waiting, 1)
        store = LocalStore(sys.argv[1])
        heard = [store.put_if_absent(f"checkpoints/{epoch:04d}/record", b"%d" % number).value for epoch in range(10)]
        pathlib.Path(sys.argv[2], str(number)).write_text(" ".join(heard))
        os._exit(0)
    children.append(child)
os.close(go)
sys.exit(sum(os.waitpid(child, 0)[1] for child in children))
"""


def test_p3_twenty_processes_at_once_have_one_winner_for_each_object(tmp_path: Path) -> None:
    root, heard = tmp_path / "state", tmp_path / "heard"
    heard.mkdir()
    subprocess.run((sys.executable, "-c", CONTENDERS, str(root), str(heard)), check=True, timeout=120)
    outcomes = {int(file.name): file.read_text().split() for file in heard.iterdir()}
    assert sorted(outcomes) == list(range(20))
    store = LocalStore(root)
    for epoch in range(10):
        winners = [number for number, words in outcomes.items() if words[epoch] == "created"]
        assert len(winners) == 1
        assert store.get(f"checkpoints/{epoch:04d}/record") == str(winners[0]).encode()
    assert len(list(store.list(""))) == 10


@pytest.mark.parametrize("root", ["file/below", "/proc/statebed"])
def test_a_folder_that_cannot_be_written_is_refused_and_nothing_is_written(tmp_path: Path, root: str) -> None:
    (tmp_path / "file").write_bytes(b"a file")
    store = LocalStore(tmp_path / root)
    for write in (lambda: store.put("a", b""), lambda: store.put_if_absent("a", b"")):
        with pytest.raises(StoreNotWritableError) as caught:
            write()
        assert caught.value.code == "STORE_NOT_WRITABLE"
        assert caught.value.where == str(tmp_path / root)
        assert caught.value.fix
        assert isinstance(caught.value, PermissionError)
    with pytest.raises(StoreNotWritableError):
        probe_put_if_absent(store)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"a file"


def test_a_read_only_file_system_is_not_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_kwargs: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(StoreNotWritableError, match="Read-only file system"):
        LocalStore(tmp_path / "state").put("a", b"")


def test_a_file_system_without_hard_links_is_refused_by_the_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object, **_kwargs: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(PutIfAbsentError, match="hard link"):
        probe_put_if_absent(LocalStore(tmp_path))
    assert list(LocalStore(tmp_path).list("")) == []


def test_a_link_whose_answer_was_lost_on_a_network_file_system_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_link = os.link

    def link_twice(*args: Any, **kwargs: Any) -> None:
        real_link(*args, **kwargs)
        real_link(*args, **kwargs)

    monkeypatch.setattr(os, "link", link_twice)
    assert LocalStore(tmp_path).put_if_absent("a", b"ours") is PutOutcome.CREATED


def test_a_relative_folder_stays_where_it_was_when_the_process_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = LocalStore("state")
    monkeypatch.chdir("/")
    store.put("a", b"x")
    assert (tmp_path / "state" / "a").read_bytes() == b"x"
    assert LocalStore(store.url).get("a") == b"x"
