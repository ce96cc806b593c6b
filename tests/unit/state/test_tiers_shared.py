"""The tiers that a process shares, and their memory budget if none is set."""

import os
from pathlib import Path

import pytest

from statebed.errors import InputError
from statebed.state.memory.budget import MOST, SHARE, available_memory, budget_of
from statebed.state.tiers.shared_tiers import Tiers


def test_a_process_has_one_budget_for_all_who_do_not_bring_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tiers, "_shared", None)
    monkeypatch.setenv("STATEBED_MEMORY", "64m")
    tiers = Tiers.shared()
    assert tiers.memory.budget == 64 << 20
    assert Tiers.shared() is tiers
    # As a forked child sees it.
    monkeypatch.setattr(Tiers, "_shared", (os.getpid() + 1, tiers))
    own = Tiers.shared()
    assert own is not tiers
    own.close()
    tiers.close()


@pytest.mark.parametrize(
    ("text", "nbytes"), [("1000", 1000), ("512m", 512 << 20), ("2g", 2 << 30), ("64 KiB", 64 << 10), ("1TB", 1 << 40)]
)
def test_the_environment_says_how_much(text: str, nbytes: int) -> None:
    assert budget_of({"STATEBED_MEMORY": text}) == nbytes


@pytest.mark.parametrize("text", ["much", "-1", "0", "2 gigs", "1.5g"])
def test_what_is_no_amount_of_memory_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="STATEBED_MEMORY"):
        budget_of({"STATEBED_MEMORY": text})


def test_without_a_word_it_is_a_part_of_what_the_process_may_use(tmp_path: Path) -> None:
    assert budget_of({}) == min(MOST, available_memory() // SHARE)
    machine = available_memory(tmp_path)
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory(tmp_path) == machine
    (tmp_path / "memory.max").write_text(f"{512 << 20}\n")
    assert available_memory(tmp_path) == 512 << 20
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text(f"{256 << 20}\n")
    assert available_memory(tmp_path) == 256 << 20
