"""state, get, diff: rows on the command line, as tables, JSON and CSV."""

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from command_line import Call, Outcome
from unit.inspect.table_world import TableWorld

import statebed as sb
from statebed.format.json_values import json_objects
from statebed.inspect import diff_state, read_state

EARNED = ("--operator", "earned")


def rows(outcome: Outcome) -> list[dict[str, Any]]:
    assert outcome.code == 0, outcome.err
    found: list[dict[str, Any]] = json.loads(outcome.out)["rows"]
    return found


def test_state_prints_what_read_state_reads(statebed: Call, rides: Path) -> None:
    expected = json_objects(read_state(rides, job="rides", operator="earned").to_arrow())
    found = rows(statebed("state", rides, "rides", *EARNED, "--limit", "0", "--json"))
    assert len(found) == len(expected) > 20
    assert found == expected


def test_a_job_and_a_table_may_be_left_out_where_there_is_one(statebed: Call, rides: Path) -> None:
    assert rows(statebed("state", rides, *EARNED, "--json")) == rows(
        statebed("state", rides, "rides", *EARNED, "--table", "groups", "--json")
    )


def test_state_says_which_table_it_shows(statebed: Call, rides: Path) -> None:
    shown = json.loads(statebed("state", rides, *EARNED, "--json").out)
    assert (shown["job"], shown["operator"], shown["table"], shown["epoch"]) == ("rides", "earned", "groups", 9)
    assert shown["keys"] == ["driver"]
    assert {"name": "driver", "type": "string"} in shown["columns"]
    assert "earned.groups of rides at epoch 9, keyed" in statebed("state", rides, *EARNED).out


def test_a_table_says_when_there_are_more_rows(statebed: Call, rides: Path) -> None:
    assert "the first 3 rows; --limit 0 shows all" in statebed("state", rides, *EARNED, "-n", "3").out
    assert "the first" not in statebed("state", rides, *EARNED, "-n", "0").out


def test_a_condition_narrows_the_rows(statebed: Call, rides: Path) -> None:
    found = rows(statebed("state", rides, *EARNED, "--where", "total > 100", "-n", "0", "--json"))
    everything = read_state(rides, operator="earned").to_arrow().to_pylist()
    assert len(found) == sum(row["total"] > 100 for row in everything) > 0
    assert "no rows" in statebed("state", rides, *EARNED, "--where", "total > 1e9").out


def test_keys_are_found_by_value_and_by_column(statebed: Call, rides: Path) -> None:
    by_value = rows(statebed("state", rides, *EARNED, "-k", "driver 3", "--json"))
    by_column = rows(statebed("state", rides, *EARNED, "-k", "driver=driver 3", "--json"))
    assert [row["driver"] for row in by_value] == ["driver 3"]
    assert by_column == by_value
    several = rows(statebed("state", rides, *EARNED, "-k", "driver 3", "-k", "driver 5", "--json"))
    assert {row["driver"] for row in several} == {"driver 3", "driver 5"}


def test_times_narrow_the_rows(statebed: Call, rides: Path) -> None:
    arguments = ("state", rides, "-o", "per_minute", "--epoch", "5", "-n", "0", "--json")
    everything = {row["_time"] for row in rows(statebed(*arguments))}
    assert len(everything) > 1
    later = {row["_time"] for row in rows(statebed(*arguments, "--from", "2026-01-01 12:01"))}
    earlier = {row["_time"] for row in rows(statebed(*arguments, "--to", "2026-01-01 12:01"))}
    assert later
    assert earlier
    assert later | earlier == everything
    assert not later & earlier


def test_columns_are_chosen_in_their_order(statebed: Call, rides: Path) -> None:
    shown = statebed("state", rides, *EARNED, "-c", "total,driver", "--format", "csv", "-n", "1").out
    assert shown.splitlines()[0] == "total,driver"
    internal = statebed("state", rides, *EARNED, "--internal", "--format", "csv", "-n", "1").out
    assert {"_key_hash", "_seq"} <= set(internal.splitlines()[0].split(","))


def test_csv_holds_every_row_and_text_as_it_is(statebed: Call, rides: Path) -> None:
    shown = statebed("state", rides, *EARNED, "--format", "csv", "-n", "0").out
    read = list(csv.DictReader(io.StringIO(shown)))
    expected = read_state(rides, operator="earned").to_arrow().to_pylist()
    assert [row["driver"] for row in read] == [row["driver"] for row in expected]
    assert "[red]d\x1b[31m7" in {row["driver"] for row in read}
    assert [float(row["total"]) for row in read] == [row["total"] for row in expected]


def test_older_epochs_show_the_state_of_their_time(statebed: Call, rides: Path) -> None:
    def total(epoch: int) -> float:
        found = rows(statebed("state", rides, *EARNED, "--epoch", str(epoch), "-n", "0", "--json"))
        return float(sum(row["total"] for row in found))

    totals = [total(epoch) for epoch in (4, 6, 8, 9)]
    assert totals == sorted(totals)
    assert len(set(totals)) == 4


def test_a_savepoint_is_shown_by_its_name(statebed: Call, saved: Path) -> None:
    shown = json.loads(statebed("state", saved, *EARNED, "--savepoint", "monday", "--json").out)
    assert (shown["savepoint"], shown["epoch"]) == ("monday", 3)
    assert "at savepoint monday (epoch 3)" in statebed("state", saved, *EARNED, "--savepoint", "monday").out


def test_count_and_scan_say_how_much_there_is(statebed: Call, rides: Path) -> None:
    expected = read_state(rides, operator="earned")
    assert statebed("state", rides, *EARNED, "--count").out == f"{expected.count()}\n"
    assert json.loads(statebed("state", rides, *EARNED, "--count", "--json").out)["count"] == expected.count()
    scan = json.loads(statebed("state", rides, *EARNED, "--scan", "-k", "driver 3", "--json").out)
    assert {file["path"] for file in scan["files"]} == {file.path for file in expected.scan().files}
    assert "files," in statebed("state", rides, *EARNED, "--scan", "-k", "driver 3").out


def test_sql_reads_the_chosen_table_and_all_others(statebed: Call, rides: Path) -> None:
    expected = read_state(rides, operator="earned").to_arrow().to_pylist()
    asked = "SELECT count(*) AS n, sum(total) AS total FROM state"
    [row] = rows(statebed("state", rides, *EARNED, "--sql", asked, "--json"))
    assert row["n"] == len(expected)
    assert row["total"] == pytest.approx(sum(one["total"] for one in expected))
    joined = "SELECT count(*) AS n FROM earned.groups e JOIN per_minute.partials p USING (driver)"
    [row] = rows(statebed("state", rides, "--sql", joined, "--json"))
    drivers = {one["driver"] for one in expected}
    open_windows = read_state(rides, operator="per_minute").to_arrow().to_pylist()
    assert row["n"] == sum(one["driver"] in drivers for one in open_windows) > 0


def test_sql_selects_positions_of_sources_and_sinks(statebed: Call, rides: Path) -> None:
    expected = sb.read_positions(rides, job="rides")
    assert expected.sources.num_rows > 0
    for name, table in (("sources", expected.sources), ("sinks", expected.sinks)):
        assert rows(statebed("state", rides, "--sql", f"FROM positions.{name}", "--json")) == json_objects(table)
    asked = "SELECT p.source, count(*) AS n FROM earned.groups, positions.sources p GROUP BY ALL ORDER BY ALL"
    found = rows(statebed("state", rides, "--sql", asked, "--json", "--epoch", str(expected.epoch - 1)))
    assert [row["source"] for row in found] == sorted(expected.sources["source"].to_pylist())
    failed = statebed("state", rides, "--sql", "SELECT * FROM positions.nothing")
    assert "positions.sources, positions.sinks" in failed.err


def test_sql_over_a_table_that_is_narrowed_sees_only_what_is_left(statebed: Call, rides: Path) -> None:
    [row] = rows(statebed("state", rides, *EARNED, "-k", "driver 3", "--sql", "SELECT count(*) n FROM state", "--json"))
    assert row["n"] == 1


@pytest.mark.parametrize("sql", ["SELECT * FROM nope", "SELEC", "SELECT no_such FROM state"])
def test_sql_that_cannot_work_names_the_tables(statebed: Call, rides: Path, sql: str) -> None:
    failed = statebed("state", rides, *EARNED, "--sql", sql)
    assert (failed.code, failed.out) == (1, "")
    assert sql in failed.err
    assert "Traceback" not in failed.err
    assert "state" in failed.err


def test_sql_over_files_that_are_gone_fails_as_reading_them_does(statebed: Call, rides: Path, tmp_path: Path) -> None:
    copied = tmp_path / "copied"
    shutil.copytree(rides, copied)
    for file in copied.rglob("earned-groups-*.parquet"):
        file.unlink()
    read, queried = (statebed("state", copied, *EARNED, *more) for more in ((), ("--sql", "SELECT * FROM state")))
    assert read.code == queried.code == 1
    assert read.err.splitlines()[0] == queried.err.splitlines()[0]
    assert "earned-groups" in queried.err


def test_get_looks_into_every_table_that_has_such_keys(statebed: Call, rides: Path) -> None:
    found = json.loads(statebed("get", rides, "rides", "driver 3", "--json").out)
    assert [(one["operator"], len(one["rows"])) for one in found["tables"]] == [("per_minute", 1), ("earned", 1)]
    assert [one["operator"] for one in found["other_keys"]] == ["busiest"]
    assert {row["driver"] for one in found["tables"] for row in one["rows"]} == {"driver 3"}
    shown = statebed("get", rides, "rides", "driver 3").out
    assert "per_minute.partials of rides" in shown
    assert "tables with other keys: busiest.kept" in shown


def test_get_of_a_key_that_is_nowhere_exits_with_3(statebed: Call, rides: Path) -> None:
    missed = statebed("get", rides, "rides", "nobody")
    assert missed.code == 3
    assert "no row for nobody in: per_minute.partials, earned.groups" in missed.out
    assert statebed("get", rides, "rides", "nobody", "--json").code == 3


def test_get_of_a_key_that_no_table_can_have_says_so(statebed: Call, rides: Path) -> None:
    failed = statebed("get", rides, "rides", "a", "b", "c")
    assert failed.code == 1
    assert "no table has keys of this form" in failed.err


def test_diff_of_a_job_says_which_tables_changed(statebed: Call, rides: Path) -> None:
    found = json.loads(statebed("diff", rides, "rides", "5", "9", "--json").out)
    assert (found["since"], found["until"]) == (5, 9)
    changes = {one["operator"]: one for one in found["tables"]}
    assert changes["earned"]["change"] == "changed"
    assert changes["earned"]["files_added"] > 0
    assert changes["earned"]["bytes_after"] == sum(
        path.stat().st_size for path in (rides / "rides").rglob("*earned-groups*.parquet") if _is_live(rides, path)
    )
    assert found["operators"][0]["after_watermark"] > found["operators"][0]["before_watermark"]
    assert "earned" in statebed("diff", rides, "rides", "5").out


def _is_live(state: Path, path: Path) -> bool:
    return str(path.relative_to(state / "rides")) in {
        file.path for file in read_state(state, operator="earned").scan().files
    }


def test_diff_of_a_table_shows_the_rows_that_changed(statebed: Call, rides: Path) -> None:
    found = json.loads(statebed("diff", rides, "rides", "8", "9", *EARNED, "--json").out)
    assert found["counts"]["insert"] == len(found["rows"]) == 1
    assert found["rows"][0] | {"change": "insert", "driver": "[red]d\x1b[31m7"} == found["rows"][0]
    expected = diff_state(rides, operator="earned", since=5, until=9)
    more = rows(statebed("diff", rides, "rides", "5", "9", *EARNED, "-n", "0", "--json"))
    assert more == json_objects(expected.to_arrow())
    shown = statebed("diff", rides, "rides", "8", *EARNED).out
    assert "1 inserted, 0 updated, 0 deleted" in shown
    assert statebed("diff", rides, "rides", "8", *EARNED, "--format", "csv").out.startswith("change,driver")


def test_diff_follows_a_table_as_epochs_are_committed(
    statebed: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = TableWorld(tmp_path, retained=3)

    def commit(number: int) -> int:
        world.write("drivers", {"city": ["Ulm"], "driver": [number], "trips": [number], "note": [None]})
        return world.epoch()

    first = commit(1)
    commit(2)
    sleeps: list[float] = []

    def committed_meanwhile(seconds: float) -> None:
        sleeps.append(seconds)
        commit(10 + len(sleeps))

    monkeypatch.setattr("statebed.cli.epoch_diff.time.sleep", committed_meanwhile)
    table = ("--operator", "count", "--table", "drivers", "--format", "csv", "--follow")
    shown = statebed("diff", tmp_path, "rides", str(first), str(first + 3), *table, "--every", "0.5").out
    lines = [line.split(",")[2] for line in shown.splitlines() if line.startswith("insert")]
    assert (lines, sleeps) == (["2", "11", "12"], [0.5, 0.5])
    for number in range(20, 28):
        commit(number)
    world.run.clean_up()
    world.end()
    late = statebed("diff", tmp_path, "rides", str(first), *table)
    assert late.code != 0
    assert "EPOCH_NOT_RETAINED" in late.err


def test_diff_takes_savepoints_by_their_names(statebed: Call, saved: Path) -> None:
    whole = json.loads(statebed("diff", saved, "rides", "monday", "--json").out)
    assert (whole["since"], whole["until"]) == (3, 5)
    table = json.loads(statebed("diff", saved, "rides", "monday", "5", *EARNED, "--json").out)
    assert (table["since"], table["until"]) == (3, 5)


def test_ls_shows_savepoints_at_their_epochs_and_by_themselves(statebed: Call, saved: Path) -> None:
    epochs = json.loads(statebed("ls", saved, "rides", "--json").out)
    assert [(epoch["epoch"], epoch["savepoints"]) for epoch in epochs if epoch["savepoints"]] == [(3, ["monday"])]
    [savepoint] = json.loads(statebed("ls", saved, "rides", "--savepoints", "--json").out)
    assert (savepoint["savepoint"], savepoint["epoch"]) == ("monday", 3)
    assert savepoint["bytes"] > 0
    assert "monday" in statebed("ls", saved, "rides", "--savepoints").out
    assert json.loads(statebed("show", saved, "rides", "--savepoint", "monday", "--json").out)["epoch"] == 3


def test_the_state_of_a_version_that_the_user_imports_is_the_same(rides: Path) -> None:
    assert sb.read_state(rides, operator="earned").count() == read_state(rides, operator="earned").count()


# ---- finished results ------------------------------------------------------------------------------------------------


def test_results_have_the_columns_that_the_operator_puts_out(statebed: Call, rides: Path) -> None:
    shown = json.loads(statebed("state", rides, *EARNED, "--results", "--json", "-n", "0").out)
    raw = json.loads(statebed("state", rides, *EARNED, "--json", "-n", "0").out)
    assert (shown["results"], raw["results"]) == (True, False)
    assert [one["name"] for one in shown["columns"]] == ["driver", "total"]
    assert shown["rows"] == json_objects(read_state(rides, operator="earned", results=True).to_arrow())
    assert len(raw["columns"]) > 2
    found = statebed("state", rides, "-o", "per_minute", "--results")
    assert "window_start" in found.out
    assert "per_minute.partials of rides at epoch 9, results" in found.out


def test_sql_get_and_export_give_results_too(statebed: Call, rides: Path, tmp_path: Path) -> None:
    asked = "SELECT * FROM earned.groups LIMIT 1"
    [row] = rows(statebed("state", rides, "--results", "--sql", asked, "--json"))
    assert set(row) == {"driver", "total"}
    found = json.loads(statebed("get", rides, "rides", "driver 3", "-o", "earned", "--results", "--json").out)
    assert set(found["tables"][0]["rows"][0]) == {"driver", "total"}
    assert statebed("export", rides, "rides", tmp_path / "x.parquet", "-o", "earned", "--results").code == 0
    assert pq.read_schema(tmp_path / "x.parquet").names == ["driver", "total"]


# ---- SQL stays inside ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sql",
    [
        "COPY (SELECT * FROM state) TO 'OUT'",
        "EXPORT DATABASE 'OUT'",
        "SELECT * FROM read_csv('IN')",
        "SELECT * FROM read_text('IN')",
        "SELECT * FROM 'IN'",
        "SELECT * FROM glob('*')",
        "INSTALL httpfs",
        "LOAD httpfs",
        "ATTACH 'OUT' AS other",
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "SET memory_limit = '1GB'",
        "SET python_enable_replacements = true",
        "PRAGMA memory_limit = '1GB'",
        "SELECT getenv('HOME') FROM state",
        "SELECT * FROM scanned",
        "FROM state; COPY state TO 'OUT'",
    ],
)
def test_sql_reaches_nothing_but_the_state(statebed: Call, rides: Path, tmp_path: Path, sql: str) -> None:
    (tmp_path / "in.csv").write_text("secret\n1\n")
    text = sql.replace("OUT", str(tmp_path / "out")).replace("IN", str(tmp_path / "in.csv"))
    before = sorted(tmp_path.iterdir())
    failed = statebed("state", rides, *EARNED, "--sql", text)
    assert failed.code != 0, failed.out
    assert "secret" not in failed.out
    assert sorted(tmp_path.iterdir()) == before
