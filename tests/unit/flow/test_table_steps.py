"""Joins of rows with a small table that is loaded before each epoch."""

import copy
import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

import statebed as sb
from statebed.errors import InputError
from statebed.expressions import bind
from statebed.flow import table_steps
from statebed.flow.event_time import event_time_columns
from statebed.flow.table_steps import EpochTable, StaticTable, TableJoin, table_join_columns
from statebed.format.schema import TIME, TIMESTAMP
from statebed.operators.joins import JoinKind

STREAM = pa.schema([("k", pa.string()), ("v", pa.int64())])
TABLE = pa.schema([("k", pa.string()), ("label", pa.string()), ("least", pa.int64())])
LABELS = [
    {"k": "a", "label": "alpha", "least": 0},
    {"k": "a", "label": "again", "least": 5},
    {"k": None, "label": "no key", "least": 0},
]
AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def labels(rows: list[dict[str, Any]] | None = None) -> StaticTable:
    table = StaticTable("labels", TABLE)
    EpochTable(table, lambda: pa.Table.from_pylist(LABELS if rows is None else rows, TABLE)).refresh()
    return table


def joined(how: JoinKind, condition: str | None = None) -> list[tuple[Any, ...]]:
    pairs = table_join_columns(STREAM, TABLE, ("k",), how).pairs
    bound = None if condition is None else bind(condition, pairs)
    step = copy.deepcopy(TableJoin(labels(), ("k",), how, STREAM, bound))  # as tasks get it
    rows = [("a", 1), ("b", 2), (None, 3)]
    table = pa.Table.from_pylist([{"k": k, "v": v} for k, v in rows], STREAM)
    times = pa.array([AT + dt.timedelta(seconds=v) for _, v in rows], TIMESTAMP)
    result = step.apply(table.append_column(pa.field(TIME, TIMESTAMP), times))
    assert result.schema.names == [*step.columns.names, TIME]
    assert all(row[TIME] == AT + dt.timedelta(seconds=row["v"]) for row in result.to_pylist())
    return sorted((tuple(row.values())[:-1] for row in result.to_pylist()), key=repr)


def test_a_row_is_joined_with_each_row_of_the_table_that_has_its_key() -> None:
    assert joined(JoinKind.INNER) == [("a", 1, "again", 5), ("a", 1, "alpha", 0)]
    assert joined(JoinKind.INNER, "v >= least") == [("a", 1, "alpha", 0)]


def test_a_left_join_keeps_rows_without_a_partner() -> None:
    assert joined(JoinKind.LEFT, "v < least") == [("a", 1, "again", 5), ("b", 2, None, None), (None, 3, None, None)]


def test_semi_and_anti_joins_give_each_row_of_the_stream_at_most_once() -> None:
    assert joined(JoinKind.SEMI) == [("a", 1)]
    assert joined(JoinKind.ANTI) == [("b", 2), (None, 3)]


def test_a_refresh_replaces_the_rows_for_later_epochs() -> None:
    contents = [LABELS[:1], []]
    table = StaticTable("labels", TABLE)
    loader = EpochTable(table, lambda: pa.Table.from_pylist(contents.pop(0), TABLE))
    loader.refresh()
    assert table.loaded.to_pylist() == LABELS[:1]
    loader.refresh()
    assert table.loaded.num_rows == 0


def test_a_table_that_is_too_large_is_refused_with_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_steps, "MAX_BYTES", 10)
    with pytest.raises(InputError, match=r"takes \d+ bytes of memory, .* at most 10 bytes") as refused:
        labels()
    assert refused.value.where == "table labels"
    assert "before the first stateful step" in refused.value.fix


def test_a_table_that_no_driver_has_loaded_is_not_taken_for_an_empty_one() -> None:
    step = TableJoin(StaticTable("labels", TABLE), ("k",), JoinKind.LEFT, STREAM)
    with pytest.raises(InputError, match="only Spark can read the table"):
        step.apply(STREAM.empty_table())


@pytest.mark.parametrize("how", [JoinKind.LEFT, JoinKind.SEMI])
def test_the_event_time_stays_a_column_of_the_results(how: JoinKind) -> None:
    flow = sb.Flow("orders")
    stream = flow.source("orders", "k string, v bigint, ts timestamp", watermark=("ts", "1 minute"))
    results = stream.add_step(TableJoin(labels(), ("k",), how, stream.output.columns))
    assert event_time_columns(flow.graph, results.edge) == ["ts"]
