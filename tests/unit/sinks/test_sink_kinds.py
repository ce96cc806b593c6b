"""Sinks by name: what each takes, what it refuses, and that the page of sinks says the same."""

import io
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from published import publication

from statebed.errors import FencedError, InputError, InvalidNameError, SinkError
from statebed.format.stream_schema import Changes, Output
from statebed.protocol import Guarantee, SinkPosition
from statebed.sinks import ConsoleSink, MemorySink, TransformedSink, read_table
from statebed.sinks.registry import KINDS, SinkRequest
from statebed.sinks.row_shape import declared_key, has_one_row
from statebed.sinks.watched import watched

COLUMNS = pa.schema([("k", pa.string()), ("n", pa.int64())])
APPEND, CHANGES = Output(COLUMNS), Output(COLUMNS, Changes.CHANGELOG)
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "sinks.md"


def wanted(output: Output = APPEND, **given: Any) -> SinkRequest:
    known: dict[str, Any] = {
        "sink_id": "out",
        "job_id": "rides",
        "key": (),
        "path": None,
        "options": {},
        "where": "here",
    }
    return SinkRequest(output=output, **{**known, **given})


def test_every_sink_and_its_guarantee_stand_in_the_page_of_sinks() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## Guarantees")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", section, re.MULTILINE)
    listed = {name: [cell.strip() for cell in cells.split("|")] for name, cells in rows}
    assert set(listed) == set(KINDS)
    for name, kind in KINDS.items():
        guarantee, *_, options = listed[name]
        assert guarantee == kind.guarantee.value
        assert set(re.findall(r"`(\w+)`", options)) == kind.options


def test_a_kind_makes_a_sink_with_its_guarantee_and_a_line_about_it(tmp_path: Path) -> None:
    given: dict[str, dict[str, Any]] = {
        "parquet": {"path": str(tmp_path / "a")},
        "debezium": {"path": str(tmp_path / "b"), "key": ("k",)},
        "delta": {
            "path": "s3://bucket/table",
            "options": {"storage_options": {"aws_access_key_id": "k", "aws_secret_access_key": "hunter2"}},
        },
        "iceberg": {"options": {"table": "a.b", "catalog": {"type": "rest", "uri": "http://u:hunter2@h/x"}}},
        "sqlite": {"path": str(tmp_path / "c.db"), "options": {"table": "t"}},
        "postgres": {"options": {"table": "s.t", "dsn": "host=db.example dbname=results", "password": "hunter2"}},
        "kafka": {"options": {"servers": "broker:9092", "topic": "t", "kafka": {"sasl.password": "hunter2"}}},
        "memory": {},
        "console": {"options": {"rows": 3}},
    }
    assert set(given) == set(KINDS)
    for name, arguments in given.items():
        sink = KINDS[name].make(wanted(**arguments))
        assert sink.sink_id == "out"
        assert sink.guarantee is KINDS[name].guarantee
        assert sink.described
        assert "\n" not in sink.described
        assert "hunter2" not in sink.described
    assert not list(tmp_path.iterdir()), "making a sink writes nothing"


MISTAKES: dict[str, tuple[str, SinkRequest, str]] = {
    "an unknown option": ("console", wanted(options={"row": 3}), "unknown options: row"),
    "no path": ("parquet", wanted(), "needs path="),
    "a path that is not for it": ("postgres", wanted(path="x", options={"table": "t"}), "has no path"),
    "no table": ("sqlite", wanted(path="x.db"), "needs table="),
    "a database in memory": ("sqlite", wanted(path=":memory:", options={"table": "t"}), "would keep no rows"),
    "an option of another type": (
        "console",
        wanted(options={"rows": "many"}),
        "`rows` must be an integer, got 'many'",
    ),
    "a changelog without key in a database": (
        "sqlite",
        wanted(CHANGES, path="x.db", options={"table": "t"}),
        "which columns identify a row",
    ),
    "a changelog without key as messages": ("debezium", wanted(CHANGES, path="x"), "which columns"),
    "an epoch column that is taken": (
        "sqlite",
        wanted(path="x.db", options={"table": "t", "epoch_column": "n"}),
        "the stream already has one with that name",
    ),
    "a partition column that there is not": ("delta", wanted(path="x", options={"partition_by": "x"}), "partition_by="),
    "storage options that are no texts": (
        "delta",
        wanted(path="x", options={"storage_options": {"aws_region": 1}}),
        "`storage_options` must be a dict whose keys and values are all text",
    ),
    "a table without namespace": ("iceberg", wanted(path="x", options={"table": "t"}), "has no namespace"),
    "neither path nor catalog": ("iceberg", wanted(options={"table": "a.t"}), "needs either path= or catalog="),
    "no time at all": ("sqlite", wanted(path="x.db", options={"table": "t", "timeout": "0 seconds"}), "longer than"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_refused_with_what_to_write(mistake: str) -> None:
    name, given, words = MISTAKES[mistake]
    with pytest.raises(InputError, match=re.escape(words)) as caught:
        KINDS[name].make(given)
    assert caught.value.where == "here"
    assert caught.value.fix


def test_a_key_is_one_column_or_several_of_the_stream() -> None:
    assert declared_key(APPEND, None, where="") == ()
    assert declared_key(APPEND, "k", where="") == ("k",)
    assert declared_key(APPEND, ["k", "n"], where="") == ("k", "n")
    wrong: Any
    for wrong in (3, [3]):
        assert not has_one_row(CHANGES, wrong, where="")
        with pytest.raises(InputError, match="must list columns"):
            declared_key(CHANGES, wrong, where="")
    for key in ("x", ["k", "k"]):
        with pytest.raises(InputError, match="must list columns of the stream, each once"):
            declared_key(APPEND, key, where="")


def test_the_console_shows_the_first_rows_of_an_epoch() -> None:
    stream = io.StringIO()
    sink = ConsoleSink(sink_id="out", rows=2, stream=stream)
    sink.publish(publication(1, 7, pa.table({"k": ["a", None, "c"], "n": [1, 20, 3]})))
    sink.publish(publication(1, 8))
    assert stream.getvalue() == "-- out, epoch 7: 3 rows\nk     n\na     1\nnull  20\n... and 1 more\n"
    assert sink.guarantee is Guarantee.AT_LEAST_ONCE


def test_memory_holds_rows_in_the_form_that_was_asked_for_and_shows_them() -> None:
    shown: list[int] = []
    made = KINDS["memory"].make(
        wanted(
            CHANGES,
            key=("k",),
            options={"epoch_column": "epoch"},
            show=lambda rows: shown.append(rows.num_rows),
        )
    )
    assert isinstance(made, MemorySink)
    made.open(1)
    made.publish(publication(1, 2, pa.table({"k": ["a", "a"], "n": [1, 2], "_weight": [-1, 1]})))
    made.publish(publication(1, 3, pa.table({"k": ["b"], "n": [1], "_weight": [1]})))
    assert made.rows == [
        {"k": "a", "n": 1, "row_kind": "update_before", "epoch": 2},
        {"k": "a", "n": 2, "row_kind": "update_after", "epoch": 2},
        {"k": "b", "n": 1, "row_kind": "insert", "epoch": 3},
    ]
    made.open(5)
    made.roll_back(5, 2)
    assert shown == [0, 2, 3, 3, 2]
    with pytest.raises(FencedError):
        made.roll_back(1, 0)


def test_a_function_before_a_table_gives_its_rows_and_the_table_keeps_its_guarantee() -> None:
    table = KINDS["parquet"].make(wanted(path="memory://transformed"))
    after = pa.schema([("n", pa.int64()), ("k", pa.string())])
    sink = TransformedSink(table, lambda rows: rows.filter(pa.compute.greater(rows["n"], 1)), schema=after)
    sink.check(last_number=0)
    sink.probe()
    assert sink.open(1) is None
    for _ in range(2):
        sink.publish(publication(1, 2, pa.table({"k": ["a"], "n": [1]}), pa.table({"k": ["b"], "n": [2]})))
    for _ in range(2):
        sink.publish(publication(1, 3, pa.table({"k": ["a"], "n": [0]})))
        assert sink.peek() == SinkPosition(run=1, epoch=3)  # up to date, although no row of the epoch is left
    sink.publish(publication(1, 4))
    sink.publish(publication(1, 5, pa.table({"k": ["c"], "n": [5]})))
    assert read_table("memory://transformed").to_pylist() == [{"n": 2, "k": "b"}, {"n": 5, "k": "c"}]
    assert sink.open(6) == SinkPosition(run=1, epoch=5)
    sink.roll_back(6, 2)
    assert read_table("memory://transformed").to_pylist() == [{"n": 2, "k": "b"}]
    assert sink.guarantee is Guarantee.EXACTLY_ONCE
    assert sink.place == table.place
    with pytest.raises(FencedError):
        sink.publish(publication(1, 7, pa.table({"k": ["z"], "n": [9]})))


def test_a_watched_sink_shows_the_rows_that_it_writes_after_a_function_before_it() -> None:
    shown: list[tuple[str, int, list[Any]]] = []
    table = KINDS["parquet"].make(wanted(path="memory://watched"))
    sink = watched(
        TransformedSink(table, lambda rows: rows.filter(pa.compute.greater(rows["n"], 1)), schema=COLUMNS),
        lambda name, epoch, rows: shown.append((name, epoch, rows.to_pylist())),
    )
    sink.open(1)
    sink.publish(publication(1, 2, pa.table({"k": ["a", "b"], "n": [1, 2]})))
    sink.publish(publication(1, 3, pa.table({"k": ["a"], "n": [0]})))
    written = read_table("memory://watched").to_pylist()
    assert written == [{"k": "b", "n": 2}]
    assert shown == [("out", 2, written)]


def test_a_function_before_a_table_that_fails_or_gives_other_columns_is_named() -> None:
    table = KINDS["memory"].make(wanted())
    failing = TransformedSink(table, lambda rows: rows["other"], schema=COLUMNS)
    with pytest.raises(SinkError, match="the function before sink out raised KeyError") as caught:
        failing.publish(publication(1, 2, pa.table({"k": ["a"], "n": [1]})))
    assert "epoch 2" in caught.value.where
    changing = TransformedSink(table, lambda rows: rows.rename_columns(["k", "m"]), schema=COLUMNS)
    with pytest.raises(InputError, match="returned \\['k', 'm'\\], not \\['k', 'n'\\]"):
        changing.publish(publication(1, 2, pa.table({"k": ["a"], "n": [1]})))


def test_a_name_that_cannot_be_part_of_a_marker_is_refused() -> None:
    with pytest.raises(InvalidNameError):
        KINDS["memory"].make(wanted(sink_id="a/b"))
