"""`statebed config` shows each value with its place, and no secret."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from statebed.config import DECLARATIONS


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("STATEBED_")]:
        monkeypatch.delenv(name)
    return tmp_path


def test_every_setting_is_listed_with_its_place(statebed: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "statebed.toml").write_text("attempts = 9")
    monkeypatch.setenv("STATEBED_MEMORY", "2g")
    done = statebed("config", "--json")
    assert done.code == 0
    lines = {line["name"]: line for line in json.loads(done.out)["settings"]}
    assert list(lines) == list(DECLARATIONS)
    assert (lines["attempts"]["value"], lines["attempts"]["source"]) == ("9", f"attempts in {folder / 'statebed.toml'}")
    assert (lines["memory"]["value"], lines["memory"]["source"]) == ("2 GiB", "environment STATEBED_MEMORY")
    assert lines["collect_every"]["source"] == "default"
    table = statebed("config")
    assert all(name in table.out for name in DECLARATIONS)


def test_credentials_are_masked(statebed: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://me:hunter2@127.0.0.1:9")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    for arguments in (["config"], ["config", "--json"]):
        shown = statebed(*arguments).out
        assert "AWS_SECRET_ACCESS_KEY" in shown
        assert "eu-west-1" in shown
        assert "hunter2" not in shown


def test_a_misspelt_variable_is_an_error_here_too(statebed: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATEBED_CACHE_FOLDR", "x")
    done = statebed("config")
    assert done.code == 1
    assert "[UNKNOWN_SETTING]" in done.err
    assert "'cache_folder'" in done.err
