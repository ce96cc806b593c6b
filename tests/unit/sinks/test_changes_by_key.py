"""Forms of changes: applying them gives the net result of the changelog."""

import contextlib
import itertools
import json
import re
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from lake_tables import Lake
from published import EPOCH_TIME_US, publication

from statebed.errors import InputError, SinkError
from statebed.format.stream_schema import Changes, Output
from statebed.operators.changelog import folded
from statebed.sinks import DebeziumFilesSink, Envelope, ParquetTableSink, read_table, table_files
from statebed.sinks.registry import KINDS, SinkRequest
from statebed.sinks.row_kinds import KeyedChanges, RowKind, _order_by
from statebed.sinks.row_shape import Form, RowShape, has_one_row, make_shape
from statebed.sinks.sql import Postgres, SQLite, SqlTable, SqlTableSink, TableName
from statebed.storage import get_storage_provider

COLUMNS = pa.schema([("k", pa.string()), ("part", pa.int64()), ("n", pa.float64())])
WEIGHTED = pa.schema([*COLUMNS, pa.field("_weight", pa.int64(), nullable=False)])
OUTPUT = Output(COLUMNS, Changes.CHANGELOG)
KEY = ("k", "part")
ENVELOPE = Envelope("rides", "totals", KEY)
numbers = itertools.count()

Key = tuple[str | None, int | None]
Row = tuple[str | None, int | None, float | None]
Epoch = list[tuple[Row, int, int]]
"""Rows, their weights, and the file that each is in."""

keys = st.tuples(st.sampled_from(["a", "b", "", None]), st.sampled_from([0, 1, None]))
values = st.sampled_from([0.0, 1.5, -2.0, None])


@given(st.lists(st.integers(0, 5) | st.integers(0, 2**63 - 1), max_size=50))
@settings(max_examples=examples(100), deadline=None)
def test_rows_with_equal_numbers_stay_in_their_order(values: list[int]) -> None:
    expected = sorted(range(len(values)), key=values.__getitem__)
    assert _order_by(np.array(values, np.int64)).tolist() == expected


@st.composite
def changelogs(draw: st.DrawFn) -> tuple[list[Epoch], dict[Key, float | None]]:
    """Epochs of changes in which every key has at most one row, and what they come to."""
    state: dict[Key, float | None] = {}
    epochs = []
    for _ in range(draw(st.integers(1, 4))):
        changes: list[tuple[Row, int]] = []
        for key in draw(st.lists(keys, unique=True, max_size=8)):
            if key in state and draw(st.booleans()):
                changes.append(((*key, state.pop(key)), -1))
                if draw(st.booleans()):
                    continue
            elif key in state and draw(st.booleans()):
                changes += [((*key, state[key]), -1), ((*key, state[key]), 1)]  # another subtask has it now
                continue
            elif key in state:
                continue
            state[key] = draw(values)
            changes.append(((*key, state[key]), 1))
        if draw(st.booleans()):
            passing = (*draw(keys), 99.0)
            changes += [(passing, 1), (passing, -1)]
        placed = [(row, weight, draw(st.integers(0, 2))) for row, weight in draw(st.permutations(changes))]
        epochs.append(placed)
    return epochs, state


def tables(epoch: Epoch) -> list[pa.Table]:
    """The files of an epoch."""
    found = []
    for file in range(3):
        mine = [(*row, weight) for row, weight, place in epoch if place == file]
        if mine:
            found.append(pa.table([list(column) for column in zip(*mine, strict=True)], schema=WEIGHTED))
    return found


def state_of(rows: list[Any]) -> dict[Key, float | None]:
    found = {(row[0], row[1]): row[2] for row in rows}
    assert len(found) == len(rows)
    return found


@given(changelogs())
def test_p6_applied_row_kinds_are_the_folded_changelog(case: tuple[list[Epoch], dict[Key, float | None]]) -> None:
    epochs, expected = case
    table: dict[Key, float | None] = {}
    for epoch in filter(None, map(tables, epochs)):
        shape = RowShape(OUTPUT, Form.ROW_KIND, ENVELOPE)
        rows = shape.applied(pa.concat_tables(epoch), publication(1, 2))
        assert rows.schema.names == shape.schema.names
        before: list[Any] = []
        kinds = rows["row_kind"].to_pylist()
        assert kinds == sorted(kinds, key=list(RowKind).index)  # retractions first
        for row in rows.to_pylist():
            key, value = (row["k"], row["part"]), row["n"]
            match RowKind(row["row_kind"]):
                case RowKind.INSERT:
                    assert key not in table
                    table[key] = value
                case RowKind.DELETE:
                    assert table.pop(key) == value
                case RowKind.UPDATE_BEFORE:
                    assert table[key] == value
                    before.append(key)
                case RowKind.UPDATE_AFTER:
                    assert key == before.pop(0)
                    table[key] = value
        assert not before
    assert table == expected


@given(changelogs(), st.booleans())
def test_p6_applied_debezium_messages_are_the_folded_changelog(
    case: tuple[list[Epoch], dict[Key, float | None]], snapshot: bool
) -> None:
    epochs, expected = case
    path = f"memory://debezium{next(numbers)}"
    sink = DebeziumFilesSink(sink_id="totals", path=path, envelope=ENVELOPE, snapshot=snapshot)
    sink.open(1)
    for number, epoch in enumerate(epochs, start=2):
        for _ in range(2):
            sink.publish(publication(1, number, *tables(epoch)))
    store = get_storage_provider(path)
    table: dict[Key, float | None] = {}
    first = None
    for name in table_files(path):
        for line in store.get(name.removeprefix(f"{store.url}/")).splitlines():
            message = json.loads(line)
            before, after, epoch_number = message["before"], message["after"], message["source"]["epoch"]
            first = first or epoch_number
            known = before or after
            key = (known["k"], known["part"])
            created = "r" if snapshot and epoch_number == first else "c"
            assert message["op"] == ({(0, 1): created, (1, 1): "u", (1, 0): "d"}[before is not None, after is not None])
            assert message["source"]["snapshot"] == ("true" if snapshot and epoch_number == first else "false")
            assert message["ts_ms"] == EPOCH_TIME_US // 1000
            assert (key in table) == (before is not None)
            assert before is None or table.pop(key) == before["n"]
            if after is not None:
                table[key] = after["n"]
    assert table == expected


@settings(max_examples=examples(30))
@given(changelogs(), st.data())
def test_p6_a_table_of_sqlite_is_the_folded_changelog_whatever_is_repeated(
    case: tuple[list[Epoch], dict[Key, float | None]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "results.db")
        database = SQLite(path, timeout_seconds=10)
        assert rows_in_sql(database, case[0], data, lambda: sqlite3.connect(path)) == case[1]


def rows_in_sql(database: Any, epochs: list[Epoch], data: st.DataObject, connect: Any) -> dict[Key, float | None]:
    """Publish everything, some of it twice or by a new run, and read the table."""
    table = f"t{next(numbers)}"
    run, sink = 0, None
    for number, epoch in enumerate(epochs, start=10):
        if sink is None or data.draw(st.booleans()):
            run += 1
            sink = SqlTableSink(
                sink_id="totals", job_id="rides", database=database, table=SqlTable(TableName(table), OUTPUT, KEY, None)
            )
            sink.open(run)
        for again in range(data.draw(st.integers(1, 2))):
            older = max(number - again, 10)
            sink.publish(publication(run, number, *tables(epoch)))
            sink.publish(publication(run, older, *tables(epochs[older - 10])))
    connection = connect()
    try:
        return state_of(connection.execute(f"select k, part, n from {table}").fetchall())
    finally:
        connection.close()


def test_p6_a_table_of_postgresql_is_the_folded_changelog_whatever_is_repeated(postgres: Any) -> None:
    database = Postgres(postgres.dsn, password=postgres.password, timeout_seconds=30)

    @settings(max_examples=examples(8))
    @given(changelogs(), st.data())
    def check(case: tuple[list[Epoch], dict[Key, float | None]], data: st.DataObject) -> None:
        found = rows_in_sql(database, case[0], data, postgres.connect)
        assert found == case[1]

    check()


@given(changelogs())
def test_p6_a_parquet_table_of_changes_folds_to_the_changelog(
    case: tuple[list[Epoch], dict[Key, float | None]],
) -> None:
    path = f"memory://folded{next(numbers)}"
    sink = ParquetTableSink(sink_id="totals", path=path, job_id="rides", schema=WEIGHTED)
    sink.open(1)
    for number, epoch in enumerate(case[0], start=2):
        sink.publish(publication(1, number, *tables(epoch)))
    rows = folded([read_table(path)], COLUMNS).to_pylist()
    assert all(row["_weight"] == 1 for row in rows)
    assert state_of([tuple(row.values()) for row in rows]) == case[1]


def test_rows_that_are_there_several_times_are_told_several_times() -> None:
    rows = pa.table([["a", "a"], [0, 0], [1.0, 2.0], [-2, 3]], schema=WEIGHTED)
    kinds = KeyedChanges(rows, KEY).with_kinds()["row_kind"].to_pylist()
    assert kinds == ["update_before", "update_before", "insert", "update_after", "update_after"]


def test_added_rows_have_no_weights_and_keep_a_row_that_replaces_an_equal_one() -> None:
    shape = make_shape(
        OUTPUT, envelope=Envelope("rides", "out", ()), form="added", epoch_column=None, default=Form.WEIGHTS, where=""
    )
    columns = OUTPUT.columns
    row: dict[str, Any] = {"k": "a", "part": 1, "n": 2.0}
    rows = pa.Table.from_pylist(
        [{**row, "_weight": -1}, {**row, "_weight": 1}, {**row, "_weight": 2}],
        schema=pa.schema([*columns, pa.field("_weight", pa.int64())]),
    )
    unused: Any = None
    added = shape.applied(rows, unused)
    assert added.column_names == columns.names == shape.schema.names
    assert added.num_rows == 3


def test_forms_that_cannot_be_are_refused_with_what_to_write() -> None:
    def shape(output: Output, key: tuple[str, ...], form: str | None, epoch_column: str | None = None) -> RowShape:
        return make_shape(
            output,
            envelope=Envelope("rides", "out", key),
            form=form,
            epoch_column=epoch_column,
            default=Form.WEIGHTS,
            where="here",
        )

    append = Output(COLUMNS)
    assert shape(append, (), None).form is Form.ROWS
    assert shape(OUTPUT, (), None).form is Form.WEIGHTS
    assert shape(OUTPUT, KEY, None).form is Form.ROW_KIND
    assert shape(append, KEY, "debezium").schema.names == ["key", "value"]
    assert shape(append, (), None, "epoch").schema.names == ["k", "part", "n", "epoch"]
    with pytest.raises(InputError, match="must be one of weights, added, row_kind, debezium, got 'avro'"):
        shape(OUTPUT, KEY, "avro")
    with pytest.raises(InputError, match="got 'rows'"):
        shape(OUTPUT, KEY, "rows")
    with pytest.raises(InputError, match="needs a key"):
        shape(OUTPUT, (), "row_kind")
    with pytest.raises(InputError, match="the stream already has one with that name"):
        shape(append, (), None, "N")
    with pytest.raises(InputError, match="the stream already has one with that name"):
        shape(Output(pa.schema([("row_kind", pa.string())]), Changes.CHANGELOG), ("row_kind",), None)


def test_debezium_writes_floats_as_their_shortest_decimal() -> None:
    """FLOAT 320.1 was written as 320.1000061035156, the double that is nearest to the float."""
    path = f"memory://debezium{next(numbers)}"
    kind = pa.float32()
    rows = pa.table(
        {
            "k": pa.array([320.1], kind),
            "s": pa.array([{"f": 0.1}], pa.struct([("f", kind)])),
            "l": pa.array([[1e-7, float("nan")]], pa.list_(kind)),
            "m": pa.array([[(0.3, float("-inf"))]], pa.map_(kind, kind)),
            "_weight": pa.array([1], pa.int64()),
        }
    )
    sink = DebeziumFilesSink(sink_id="totals", path=path, envelope=Envelope("rides", "totals", ("k",)))
    sink.open(1)
    sink.publish(publication(1, 2, rows))
    store = get_storage_provider(path)
    [name] = table_files(path)
    line = store.get(name.removeprefix(f"{store.url}/"))
    assert b'"after":{"k":320.1,"s":{"f":0.1},"l":[1e-7,"NaN"],"m":{"0.3":"-Infinity"}}' in line


def test_an_aggregate_without_key_reaches_every_sink_as_one_row(tmp_path: Path) -> None:
    """SQL tables and Debezium messages refused it, because no column identifies its row."""
    output = Output(pa.schema([("n", pa.int64())]), Changes.CHANGELOG)

    def changed(*rows: tuple[int, int]) -> pa.Table:
        schema = pa.schema([*output.columns, pa.field("_weight", pa.int64(), nullable=False)])
        return pa.table([[row[0] for row in rows], [row[1] for row in rows]], schema=schema)

    def made(kind: str, **options: Any) -> Any:
        path = None if kind in {"memory", "console"} else str(tmp_path / kind)
        wanted = SinkRequest(
            sink_id="total",
            job_id="rides",
            output=output,
            key=(),
            path=path,
            options=options,
            where="here",
            one_row=True,
        )
        sink = KINDS[kind].make(wanted)
        sink.open(1)
        sink.publish(publication(1, 2, changed((1, 1))))
        sink.publish(publication(1, 3, changed((1, -1), (2, 1))))
        sink.publish(publication(1, 4, changed((2, -1), (2, 1))))
        return sink

    made("sqlite", table="total")
    with contextlib.closing(sqlite3.connect(tmp_path / "sqlite")) as connection:
        assert connection.execute("select n from total").fetchall() == [(2,)]
    for kind in ("delta", "iceberg"):
        sink = made(kind, **({"table": "lake.results"} if kind == "iceberg" else {}))
        assert Lake(kind, tmp_path / kind).rows() == [(2,)]
        with pytest.raises(SinkError, match="leaves 2 rows in a table of one row"):
            sink.publish(publication(1, 5, changed((3, 1), (4, 1))))
        sink.publish(publication(1, 6, changed((2, -1))))
        assert Lake(kind, tmp_path / kind).rows() == []
    made("debezium")
    lines = [
        json.loads(line)
        for name in table_files(str(tmp_path / "debezium"))
        for line in Path(name).read_text().splitlines()
    ]
    assert [(line["op"], line["before"], line["after"]) for line in lines] == [
        ("c", None, {"n": 1}),
        ("u", {"n": 1}, {"n": 2}),
    ]
    made("parquet")
    assert folded([read_table(str(tmp_path / "parquet"))], output.columns).to_pylist() == [{"n": 2, "_weight": 1}]
    assert [row["row_kind"] for row in made("memory").rows] == ["insert", "update_before", "update_after"]
    made("console")
    with pytest.raises(InputError, match=re.escape("or key=[] if it has one row")):
        KINDS["debezium"].make(SinkRequest("total", "rides", output, (), "x", {}, "here"))
    assert has_one_row(output, [], where="here")
    with pytest.raises(InputError, match="its rows are only appended"):
        has_one_row(Output(output.columns), [], where="here")


def test_an_aggregate_without_key_is_one_row_in_postgresql(postgres: Any) -> None:
    output = Output(pa.schema([("n", pa.int64())]), Changes.CHANGELOG)
    database = Postgres(postgres.dsn, password=postgres.password, timeout_seconds=30)
    table = SqlTable(TableName("total"), output, (), None, one_row=True)
    sink = SqlTableSink(sink_id="total", job_id="rides", database=database, table=table)
    sink.open(1)
    sink.publish(publication(1, 2, pa.table({"n": [1], "_weight": [1]})))
    sink.publish(publication(1, 3, pa.table({"n": [1, 2], "_weight": [-1, 1]})))
    assert postgres.run("select n from total") == [(2,)]
    with pytest.raises(SinkError, match="has 2 rows with the key"):
        sink.publish(publication(1, 4, pa.table({"n": [3, 4], "_weight": [1, 1]})))
