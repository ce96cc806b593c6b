"""Copies that the processes of a host share: found by label, whole or not at all, bounded, and never in the way."""

import errno
import os
import pickle
import resource
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from statebed.errors import InputError, MissingFileError, SpillError
from statebed.state.host_cache import HostCache, cache, folder
from statebed.state.tiers.column_files import ColumnFileWriter

KINDS = {"hashes": np.uint64}
ROWS = 1000
SIZE = 8 * ROWS


@pytest.fixture(autouse=True)
def nothing_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behave like a process that has just started."""
    monkeypatch.setattr(cache, "_checked", cache._VerifiedFiles())


@pytest.fixture
def shared(tmp_path: Path) -> HostCache:
    return HostCache(tmp_path / "cache", 1 << 20)


def writes(number: int, rows: int = ROWS) -> Callable[[ColumnFileWriter], None]:
    def write(file: ColumnFileWriter) -> None:
        file.append("hashes", np.arange(number, number + rows, dtype=np.uint64))
        file.append_others(pa.table({"name": [f"{number}"] * 3}))

    return write


def add(shared: HostCache, label: str, number: int = 0, rows: int = ROWS) -> bool:
    return shared.add(label, KINDS, writes(number, rows), max_rows=rows, nbytes=8 * rows)


def first_of(shared: HostCache, label: str) -> int | None:
    found = shared.open(label)
    return None if found is None else int(found.fixed["hashes"][0])


def copies(shared: HostCache) -> list[Path]:
    return sorted(shared.folder.glob(f"*{folder.SUFFIX}"))


def left(shared: HostCache) -> list[str]:
    return sorted(path.name for path in shared.folder.iterdir() if path.suffix not in {folder.SUFFIX, ""})


def test_a_copy_is_found_by_its_label_with_what_was_written(shared: HostCache) -> None:
    assert shared.open("a") is None
    assert add(shared, "a", 7)
    found = shared.open("a")
    assert found is not None
    assert found.fixed["hashes"].tolist() == list(range(7, 7 + ROWS))
    assert found.others is not None
    assert found.others["name"].to_pylist() == ["7"] * 3
    assert shared.open("b") is None
    assert (shared.counts.hits, shared.counts.misses, shared.counts.written) == (1, 2, 1)
    assert left(shared) == []


def test_another_process_finds_the_same_copies(shared: HostCache) -> None:
    add(shared, "a", 5)
    other = pickle.loads(pickle.dumps(shared))  # noqa: S301 - our own bytes
    assert first_of(other, "a") == 5
    assert (other.folder, other.limit_bytes) == (shared.folder, shared.limit_bytes)


def test_only_its_user_can_read_it(shared: HostCache) -> None:
    add(shared, "a")
    assert stat.S_IMODE(shared.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in shared.folder.iterdir()} == {0o600}


def test_a_folder_that_others_can_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(SpillError, match="other users have access to it"):
        HostCache(tmp_path, 1 << 20)
    with pytest.raises(InputError, match="at least 0 bytes, got -1"):
        HostCache(tmp_path / "other", -1)


def flip(at: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)

    return damage


DAMAGES: dict[str, Callable[[Path], object]] = {
    "first byte": flip(0),
    "a value": flip(SIZE // 2),
    "directory": flip(-40),
    "tail": flip(-1),
    "cut short": lambda path: os.truncate(path, path.stat().st_size - 1),
    "cut off": lambda path: os.truncate(path, SIZE // 2),
    "empty": lambda path: os.truncate(path, 0),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_p7_a_damaged_copy_is_found_removed_and_written_again(
    shared: HostCache, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    add(shared, "a", 5)
    (path,) = copies(shared)
    DAMAGES[damage](path)
    assert shared.open("a") is None
    assert shared.counts.damaged == 1
    assert "damaged copy" in caplog.text
    assert not copies(shared)
    add(shared, "a", 5)
    assert first_of(shared, "a") == 5


def test_p7_a_file_that_is_written_to_is_checked_again(shared: HostCache) -> None:
    add(shared, "a", 5)
    assert first_of(shared, "a") == 5
    flip(100)(copies(shared)[0])
    assert shared.open("a") is None


def test_p7_a_copy_under_the_name_of_another_is_no_copy_of_it(shared: HostCache) -> None:
    add(shared, "a", 5)
    (path,) = copies(shared)
    add(shared, "b", 6)
    (other,) = [one for one in copies(shared) if one != path]
    shutil.copyfile(path, other)
    assert shared.open("b") is None
    assert first_of(shared, "a") == 5


def test_the_coldest_leave_when_the_bound_is_reached(tmp_path: Path) -> None:
    shared = HostCache(tmp_path / "cache", 12 * SIZE)
    for number in range(8):
        assert add(shared, f"{number}", number)
        os.utime(shared._path(f"{number}"), (number, number))
    assert first_of(shared, "0") == 0  # warm again
    for number in range(8, 12):
        assert add(shared, f"{number}", number)
        assert shared.used <= shared.limit_bytes
    assert first_of(shared, "0") == 0
    assert shared.open("1") is None
    assert first_of(shared, "11") == 11
    assert shared.counts.evicted >= 1


def test_the_number_of_copies_is_bounded_however_small_they_are(
    shared: HostCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "_MAX_FILES", 10)
    for number in range(30):
        assert add(shared, f"{number}", number, rows=3)
        assert len(copies(shared)) <= 10
    assert first_of(shared, "29") == 29


def test_a_copy_that_is_mapped_stays_readable_after_it_was_evicted(tmp_path: Path) -> None:
    shared = HostCache(tmp_path / "cache", 4 * SIZE)
    add(shared, "a", 5)
    found = shared.open("a")
    for number in range(6):
        add(shared, f"{number}", number)
    assert shared.open("a") is None
    assert found is not None
    assert found.fixed["hashes"].tolist() == list(range(5, 5 + ROWS))


def test_what_is_larger_than_the_bound_is_not_kept(tmp_path: Path) -> None:
    shared = HostCache(tmp_path / "cache", SIZE // 2)
    assert not add(shared, "a")
    assert shared.counts.failures == 0
    off = HostCache(tmp_path / "off", 0)
    assert not add(off, "a")


def test_files_that_a_killed_writer_left_are_removed(tmp_path: Path) -> None:
    shared = HostCache(tmp_path / "cache", 1 << 20)
    torn = shared.folder / "1-torn.making"
    torn.write_bytes(bytes(100))
    os.utime(torn, (1, 1))
    young = shared.folder / "2-young.making"
    young.write_bytes(bytes(100))
    HostCache(shared.folder, 1 << 20)
    assert left(shared) == [young.name]


def test_a_folder_that_was_removed_is_made_again(shared: HostCache) -> None:
    add(shared, "a", 5)
    found = shared.open("a")
    shutil.rmtree(shared.folder)
    assert shared.open("a") is None
    assert add(shared, "a", 5)
    assert first_of(shared, "a") == 5
    assert found is not None
    assert int(found.fixed["hashes"][0]) == 5


def test_without_space_it_says_so_and_rests(
    shared: HostCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        assert not add(shared, "a")
    assert "No space left" in caplog.text
    assert left(shared) == []
    assert not copies(shared)
    assert not shared.writable
    assert not add(shared, "a")
    assert shared.counts.failures == 1


def test_a_path_that_cannot_be_a_folder_means_no_copies(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    shared = HostCache(tmp_path / "file" / "cache", 1 << 20)
    assert not add(shared, "a")
    assert shared.open("a") is None


def test_what_the_store_refuses_while_a_copy_is_made_is_raised(shared: HostCache) -> None:
    def write(_: ColumnFileWriter) -> None:
        raise MissingFileError("a data file is not there")

    with pytest.raises(MissingFileError):
        shared.add("a", KINDS, write, max_rows=1, nbytes=8)
    assert left(shared) == []
    assert not copies(shared)


def test_a_lock_that_is_held_for_long_means_no_copy(shared: HostCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "_WAIT_SECONDS", 0.05)
    with shared._folder.locked():
        assert not add(shared, "a")
    assert shared.counts.failures == 1


def test_a_disk_that_refuses_to_write_on_leaves_nothing_behind(shared: HostCache) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE // 2, hard))
    try:
        assert not add(shared, "a")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert shared.counts.failures == 1
    assert left(shared) == []
    assert not copies(shared)


READ_ONLY = """
import os, sys
import numpy as np
from pathlib import Path
from statebed.state.host_cache import HostCache

if os.getuid() == 0:
    os.setuid(65534)  # root may write everywhere

def write(file):
    file.append("hashes", np.arange(10, dtype=np.uint64))

folder = Path(sys.argv[1]) / "cache"
shared = HostCache(folder, 1 << 20)
assert shared.add("a", {"hashes": np.uint64}, write, max_rows=10, nbytes=80)
folder.chmod(0o500)
(folder / "lock").chmod(0o400)
again = HostCache(folder, 1 << 20)
assert again.open("a").fixed["hashes"].tolist() == list(range(10))
assert not again.add("b", {"hashes": np.uint64}, write, max_rows=10, nbytes=80)
assert again.counts.failures == 1
assert again.open("b") is None
folder.chmod(0o700)
"""


def test_a_folder_that_can_only_be_read_is_read() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        done = subprocess.run(
            [sys.executable, "-c", READ_ONLY, folder], capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 0, done.stderr
