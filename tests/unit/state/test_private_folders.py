"""Folders for spilled state and for the host cache: no other user may be able to replace them."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from statebed.errors import SpillError
from statebed.state.host_cache.folder import CacheFolder
from statebed.state.tiers.spill_folder import SpillFolder

NOBODY = 65534


@pytest.fixture
def give_away(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Let a folder or link belong to another user: really, or, where only root could do that, as seen by another."""

    def give(path: Path) -> None:
        if os.getuid() == 0:
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        else:
            monkeypatch.setattr(os, "getuid", lambda: NOBODY)

    return give


def spill(folder: Path) -> None:
    SpillFolder(folder).close()


def cache(folder: Path) -> None:
    CacheFolder(folder, 1 << 20).make()


MAKERS: dict[str, Callable[[Path], None]] = {"spill": spill, "cache": cache}


@pytest.mark.parametrize("maker", MAKERS)
def test_a_folder_below_one_of_another_user_is_refused(
    tmp_path: Path, maker: str, give_away: Callable[[Path], None]
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    give_away(theirs)
    with pytest.raises(SpillError, match="another user"):
        MAKERS[maker](theirs / "between" / "folder")
    assert not list(theirs.iterdir()), "nothing is made there first"


@pytest.mark.parametrize("maker", MAKERS)
def test_a_folder_reached_through_a_link_of_another_user_is_refused(
    tmp_path: Path, maker: str, give_away: Callable[[Path], None]
) -> None:
    (tmp_path / "own").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "own")
    give_away(link)
    with pytest.raises(SpillError, match="another user"):
        MAKERS[maker](link / "folder")


@pytest.mark.parametrize("maker", MAKERS)
def test_a_link_of_our_own_into_a_folder_of_another_user_is_refused(
    tmp_path: Path, maker: str, give_away: Callable[[Path], None]
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    give_away(theirs)
    (tmp_path / "link").symlink_to(theirs)
    with pytest.raises(SpillError, match="another user"):
        MAKERS[maker](tmp_path / "link" / "folder")


@pytest.mark.parametrize("maker", MAKERS)
def test_a_folder_in_one_that_everybody_may_write_to_is_accepted(tmp_path: Path, maker: str) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)  # as volumes of containers are
    MAKERS[maker](shared / "between" / "folder")
