"""The folder for spilled state: private, and clean of what dead processes left."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from statebed.errors import SpillError
from statebed.state.tiers import spill_folder
from statebed.state.tiers.spill_folder import SpillFolder

CHILD = """
import sys, time
from statebed.state.tiers.spill_folder import SpillFolder
folder = SpillFolder(sys.argv[1])
folder.new_file(".arrow").write_bytes(b"rows")
print(folder.path, flush=True)
time.sleep(60)
"""


def start_child(root: Path) -> tuple["subprocess.Popen[str]", Path]:
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(root)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    return child, Path(child.stdout.readline().strip())


def test_leftovers_of_a_killed_process_go_and_those_of_a_living_one_stay(tmp_path: Path) -> None:
    dead, dead_folder = start_child(tmp_path)
    living, living_folder = start_child(tmp_path)
    try:
        os.kill(dead.pid, signal.SIGKILL)
        dead.wait(30)
        assert list(dead_folder.iterdir())
        folder = SpillFolder(tmp_path)
        assert folder.removed == (dead_folder.name,)
        assert not dead_folder.exists()
        assert [path.read_bytes() for path in living_folder.iterdir()] == [b"rows"]
        assert SpillFolder(tmp_path).removed == ()
    finally:
        for child in (dead, living):
            child.kill()
            child.wait(30)
            assert child.stdout is not None
            child.stdout.close()


def test_only_its_user_can_read_it(tmp_path: Path) -> None:
    folder = SpillFolder(tmp_path / "new" / "root")
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "new" / "root").stat().st_mode) == 0o700


def test_closing_removes_it_with_its_lock(tmp_path: Path) -> None:
    folder = SpillFolder(tmp_path)
    folder.new_file(".arrow").write_bytes(b"rows")
    folder.close()
    folder.close()
    assert list(tmp_path.iterdir()) == []


def test_a_root_that_cannot_be_written_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(SpillError, match=r"where: .*file"):
        SpillFolder(tmp_path / "file" / "below")


def test_a_default_folder_that_others_can_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill_folder, "_default_root", lambda: tmp_path / "guessed")
    SpillFolder().close()
    (tmp_path / "guessed").chmod(0o755)
    with pytest.raises(SpillError, match="other users have access to it"):
        SpillFolder()


def test_a_forked_child_leaves_the_folder_of_its_parent_alone(tmp_path: Path) -> None:
    folder = SpillFolder(tmp_path)
    spill_folder._remove(-1, folder.path, os.getpid() + 1)
    assert folder.path.is_dir()
