"""show with its options: files, who needs them, columns, subtasks, one operator, figures."""

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import Call

from statebed.cli.commands import logs
from statebed.inspect.files import ranges
from statebed.inspect.jobs import open_log


def shown(statebed: Call, state: Path, *options: str) -> dict[str, Any]:
    outcome = statebed("show", state, "rides", *options, "--json")
    assert outcome.code == 0, outcome.err
    document: dict[str, Any] = json.loads(outcome.out)
    return document


def test_every_file_is_listed_as_it_lies_on_disk(statebed: Call, rides: Path) -> None:
    found = shown(statebed, rides, "--files")
    tables = {(table["operator"], table["table"]): table for table in found["tables"]}
    for name, table in tables.items():
        own = [file for file in found["files"] if (file["operator"], file["table"]) == name]
        assert len(own) == table["files"]
        assert sum(file["rows"] for file in own) == table["rows"]
    assert len(found["files"]) > 3
    for file in found["files"]:
        assert (rides / "rides" / file["path"]).stat().st_size == file["bytes"]
        assert 0 <= file["owned_first"] <= file["min_key_hash"] <= file["max_key_hash"] <= file["owned_last"]
        assert file["epochs"] == []
    assert "files" not in shown(statebed, rides)


def test_who_needs_a_file_is_what_the_records_name(statebed: Call, saved: Path) -> None:
    files = shown(statebed, saved, "4", "--needed-by")["files"]
    for file in files:
        for epoch in range(2, 6):
            named = {one["path"] for one in shown(statebed, saved, str(epoch), "--files")["files"]}
            assert (epoch in file["epochs"]) == (file["path"] in named)
    pinned = shown(statebed, saved, "--savepoint", "monday", "--needed-by")["files"]
    assert all(file["savepoints"] == ["monday"] for file in pinned)
    assert any(not file["savepoints"] for file in shown(statebed, saved, "--needed-by")["files"])
    words = statebed("show", saved, "rides", "--savepoint", "monday", "--needed-by").out
    assert "savepoint monday" in words


def test_columns_keys_and_lifetimes_are_those_of_the_tables(statebed: Call, rides: Path) -> None:
    schemas = {one["operator"]: one for one in shown(statebed, rides, "--schema")["schemas"]}
    assert schemas["earned"]["keys"] == ["driver"]
    driver = schemas["earned"]["columns"][0]
    assert (driver["column"], driver["type"], driver["key"]) == ("driver", "string", True)
    assert schemas["per_minute"]["bin_us"] == 60_000_000
    words = statebed("show", rides, "rides", "--schema").out
    assert "columns of per_minute.partials" in words
    assert "in bins of 1 min" in words


def test_subtasks_share_the_space_of_key_hashes(statebed: Call, rides: Path) -> None:
    subtasks = [one for one in shown(statebed, rides, "--subtasks")["subtasks"] if one["operator"] == "earned"]
    assert [one["subtask"] for one in subtasks] == [0, 1]
    assert subtasks[0]["owned_first"] == 0
    assert subtasks[0]["owned_last"] + 1 == subtasks[1]["owned_first"]
    assert subtasks[1]["owned_last"] == 2**64 - 1
    assert "50.0%" in statebed("show", rides, "rides", "--subtasks").out


def test_one_operator_alone(statebed: Call, rides: Path) -> None:
    found = shown(statebed, rides, "-o", "earned", "--files", "--schema", "--subtasks")
    for part in ("operators", "tables", "files", "schemas", "subtasks"):
        assert {one["operator"] for one in found[part]} == {"earned"}
    assert {one["operator"] for one in found["figures"]["tables"]} == {"earned"}


def test_figures_are_shown_where_the_record_has_them(statebed: Call, rides: Path, location: Path) -> None:
    figures = shown(statebed, rides)["figures"]
    assert figures["phases_us"]["read"] > 0
    assert figures["compaction"]["merges"] == 9
    words = statebed("show", rides, "rides").out
    for part in ("phases: planning", "state by tier", "memory of workers", "compaction since the run began"):
        assert part in words
    older = json.loads(statebed("show", location, "rides", "--json").out)
    assert older["figures"] is None
    assert "phases" not in statebed("show", location, "rides").out


def test_the_record_after_an_epoch_tells_its_last_phases(statebed: Call, rides: Path) -> None:
    assert "commit" not in shown(statebed, rides)["phases_us"]
    assert list(shown(statebed, rides, "8")["phases_us"]) == [
        "planning",
        "read",
        "shuffle",
        "merge",
        "write",
        "commit",
        "publish",
    ]


def test_operators_say_what_they_read(statebed: Call, rides: Path) -> None:
    reads = {one["operator"]: one["reads"] for one in shown(statebed, rides)["operators"]}
    assert reads == {"per_minute": ["rides"], "busiest": ["per_minute"], "earned": ["rides"]}


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([4], "4"), ([1, 2, 3], "1-3"), ([1, 3, 4, 9], "1, 3-4, 9"), ([7, 8], "7-8")]
)
def test_numbers_in_few_words(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text


def test_lists_of_a_job_page_through_its_log(statebed: Call, rides: Path) -> None:
    numbers = open_log(str(rides), "rides").numbers()

    def listed(*options: str) -> list[int]:
        return [epoch["epoch"] for epoch in json.loads(statebed("ls", rides, "rides", *options, "--json").out)]

    assert listed("--limit", "0") == numbers
    assert listed("-n", "2") == numbers[-2:]
    assert listed("-n", "2", "--before", str(numbers[-2])) == numbers[-4:-2]
    assert listed("--before", "1") == []
    assert f"for older epochs pass --before {numbers[-2]}" in statebed("ls", rides, "rides", "-n", "2").out
    assert "older epochs" not in statebed("ls", rides, "rides").out
    assert "rides has no epoch before 1" in statebed("ls", rides, "rides", "--before", "1").out


def test_forks_are_seen_in_runs_and_lineages(statebed: Call, location: Path) -> None:
    runs = json.loads(statebed("ls", location, "rides", "--runs", "--json").out)
    assert [(run["run"], run["base"], run["first_epoch"], run["last_epoch"]) for run in runs] == [
        (1, 0, 2, 4),
        (5, 2, 6, 6),
    ]
    lineages = json.loads(statebed("ls", location, "rides", "--lineages", "--json").out)
    assert [(one["status"], one["kept_until"], one["last_epoch"]) for one in lineages] == [
        ("abandoned", 2, 4),
        ("current", 6, 6),
    ]
    assert "abandoned" in statebed("ls", location, "rides", "--lineages").out
    assert "2-4" in statebed("ls", location, "rides", "--runs").out
    assert "has no savepoint" in statebed("ls", location, "rides", "--savepoints").out


def test_a_search_that_ended_early_says_so(statebed: Call, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(statebed, saved, "--needed-by")["needed_by_complete"] is True
    monkeypatch.setattr(logs, "REFERRERS", 2)
    assert shown(statebed, saved, "--needed-by")["needed_by_complete"] is False
    assert "searched in epochs 4-5 and all savepoints" in statebed("show", saved, "--needed-by").out
