"""Keys on the command line: values in order, `column=value`, several keys, keys of any type in global tables."""

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import Call

from statebed import testing
from statebed.aggregates import functions as f
from statebed.checkpoint import EpochDraft, Run
from statebed.flow import Flow
from statebed.state import GlobalKeyedView, TableManager, TaskInfo, global_table_config, operator_entry
from statebed.storage import LocalStore, ScopedStore


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job whose keys have two columns, text and number."""
    state = tmp_path_factory.mktemp("pairs") / "state"
    flow = Flow("pairs")
    fares = flow.source("fares", "city STRING, driver BIGINT, fare DOUBLE, ts TIMESTAMP", watermark=("ts", "1 second"))
    fares.key_by("city", "driver", name="earned").agg(total=f.sum("fare"))
    rows = [
        {"city": city, "driver": driver, "fare": 1.0, "ts": "2026-01-01 12:00:00"}
        for city in ("rome", "x=y", "ulm")
        for driver in (1, 2, 3)
    ]
    with testing.run(flow, store=LocalStore(state)) as run:
        run.feed("fares", rows)
    return state


@pytest.fixture(scope="module")
def totals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program with a global table, whose keys are texts."""
    state = tmp_path_factory.mktemp("totals") / "state"
    store = ScopedStore(LocalStore(state), "totals")
    run = Run.open(store, "totals")
    configs = global_table_config("by_name", "")
    with TableManager(TaskInfo("totals", "sum"), configs, store, restore_from=run.head) as manager:
        table: GlobalKeyedView[Any, Any] = manager.get_global_keyed_state("by_name")
        for key in ("ann", "42", 42, "[1]"):
            table.insert(key, f"value of {key!r}")
        stored = manager.checkpoint(run.next_epoch).result(timeout=60)
        run.commit(EpochDraft(operators=[operator_entry([stored])]))
    return state


def found(statebed: Call, state: Path, *keys: str) -> set[tuple[str, int]]:
    options = [word for key in keys for word in ("--key", key)]
    outcome = statebed("state", state, *options, "--json")
    assert outcome.code == 0, outcome.err
    return {(row["city"], row["driver"]) for row in json.loads(outcome.out)["rows"]}


def test_a_key_of_two_columns_is_typed_in_their_order_or_by_name(statebed: Call, pairs: Path) -> None:
    assert found(statebed, pairs, "rome", "2") == {("rome", 2)}
    assert found(statebed, pairs, "driver=2", "city=rome") == {("rome", 2)}
    assert found(statebed, pairs, "city=x=y", "driver=1") == {("x=y", 1)}
    assert found(statebed, pairs, "x=y", "1") == {("x=y", 1)}, "x is no column: it is a value"


def test_several_values_of_a_column_are_several_keys(statebed: Call, pairs: Path) -> None:
    keys = found(statebed, pairs, "city=rome", "city=ulm", "driver=1", "driver=3")
    assert keys == {("rome", 1), ("rome", 3), ("ulm", 1), ("ulm", 3)}


@pytest.mark.parametrize("keys", [["rome"], ["city=rome"], ["rome", "1", "2"], ["city=rome", "2"]])
def test_a_part_of_a_key_says_which_columns_it_needs(statebed: Call, pairs: Path, keys: list[str]) -> None:
    told = statebed("state", pairs, *[word for key in keys for word in ("-k", key)])
    assert told.code == 1
    assert "city=... driver=..." in told.err


def test_a_value_of_another_type_is_told(statebed: Call, pairs: Path) -> None:
    told = statebed("state", pairs, "-k", "rome", "-k", "two")
    assert told.code == 1
    assert "'driver' is int64" in told.err


def test_get_takes_the_same_forms(statebed: Call, pairs: Path) -> None:
    for typed in (["rome", "2"], ["driver=2", "city=rome"]):
        document = json.loads(statebed("get", pairs, "pairs", *typed, "--json").out)
        assert [(row["city"], row["driver"]) for row in document["tables"][0]["rows"]] == [("rome", 2)]
    assert statebed("get", pairs, "pairs", "rome", "9").code == 3
    told = statebed("get", pairs, "pairs", "city=rome", "city=ulm", "driver=1")
    assert told.code == 1
    assert "several keys" in told.err


def test_keys_of_global_tables_are_looked_for_as_text_and_as_value(statebed: Call, totals: Path) -> None:
    def values(key: str) -> list[str]:
        rows = json.loads(statebed("get", totals, "totals", key, "--json").out)["tables"][0]["rows"]
        return sorted(row["value"] for row in rows)

    assert len(values("ann")) == 1
    assert len(values("42")) == 2, "the text, and the number"
    assert len(values("[1]")) == 1
    assert "value of 'ann'" in values("ann")[0]
    assert statebed("get", totals, "totals", "nobody").code == 3
