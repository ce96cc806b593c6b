"""SQL tables that somebody else changed: dropped, replaced or retyped, and a damaged table of commits."""

from typing import Any

import pyarrow as pa
import pytest
from published import publication
from unit.sinks import publishing

from statebed.checkpoint import Publisher, SinkStart
from statebed.errors import FencedError, InputError, SinkError, SinkStartError
from statebed.format.stream_schema import Output
from statebed.protocol import SinkPosition
from statebed.sinks.sql import SqlTable, SqlTableSink, TableName
from statebed.storage import MemoryStore

APPEND = Output(pa.schema([("k", pa.string()), ("n", pa.int64())]))
ROWS = pa.table([["a"], [1]], schema=APPEND.columns)


def counts_sink(sql: Any) -> SqlTableSink:
    table = SqlTable(TableName("results"), publishing.OUTPUT, ("k",), None)
    return SqlTableSink(sink_id=publishing.SINK, job_id=publishing.JOB, database=sql.database(), table=table)


def published(store: MemoryStore, sql: Any, epochs: int, **choices: Any) -> int:
    """Run the job for some epochs and return the number of epochs so far."""
    run = publishing.open_run(store)
    publisher = Publisher(run, [counts_sink(sql)], **choices)
    publisher.open()
    for _ in range(epochs):
        publishing.commit(run)
        publisher.publish_pending()
    return publishing.counter_of(run)


def test_a_dropped_table_is_an_empty_sink_though_its_commit_row_is_still_there(sql: Any) -> None:
    store = MemoryStore()
    published(store, sql, 7)
    sql.run("drop table results")
    with pytest.raises(SinkStartError, match="holds nothing at its target, though epochs up to 8 were published"):
        published(store, sql, 1)
    assert sql.run("select epoch from _statebed_commits") == [(8,)]  # a refused start changes nothing
    count = published(store, sql, 3, starts={publishing.SINK: SinkStart.REBUILD})
    assert dict(sql.rows()) == publishing.expected(count)


def test_a_dropped_table_still_fences_and_has_its_owner(sql: Any) -> None:
    sql.sink(APPEND).open(5)
    sql.run("drop table results")
    assert sql.sink(APPEND).peek() == SinkPosition(run=5, epoch=0)
    with pytest.raises(FencedError):
        sql.sink(APPEND).open(4)
    with pytest.raises(InputError, match="belongs to rides/out"):
        sql.sink(APPEND, sink_id="other").open(6)
    assert sql.sink(APPEND).open(6) == SinkPosition(run=5, epoch=0)


@pytest.mark.parametrize("key", [(), ("k",)])
def test_a_table_that_is_dropped_while_the_job_runs_is_named(sql: Any, key: tuple[str, ...]) -> None:
    sink = sql.sink(APPEND, key=key)
    sink.open(1)
    sink.publish(publication(1, 2, ROWS))
    sql.run("drop table results")
    with pytest.raises(SinkError, match="the table no longer exists; it was dropped or renamed") as refused:
        sink.publish(publication(1, 3, ROWS))
    assert "results" in refused.value.where
    assert sink.peek() == SinkPosition(run=1, epoch=0)


@pytest.mark.parametrize("key", [(), ("k",)])
def test_a_column_that_is_retyped_while_the_job_runs_is_refused(sql: Any, key: tuple[str, ...]) -> None:
    sink = sql.sink(APPEND, key=key)
    sink.open(1)
    sink.publish(publication(1, 2, ROWS))
    sql.run("drop table results")
    sql.run("create table results (k text, n text)")
    with pytest.raises(InputError, match="n is int64"):
        sink.publish(publication(1, 3, ROWS))
    assert not sql.rows()


@pytest.mark.parametrize("value", ["null", "'abc'", "-5"])
def test_a_damaged_commit_row_is_named(sql: Any, value: str) -> None:
    sql.sink(APPEND).open(1)
    sql.run("drop table _statebed_commits")
    sql.run("create table _statebed_commits (table_name text primary key, owner text, run bigint, epoch text)")
    sql.run(f"insert into _statebed_commits values ('results', 'rides/out', 1, {value})")
    for look in (sql.sink(APPEND).peek, lambda: sql.sink(APPEND).open(2)):
        with pytest.raises(SinkError, match="_statebed_commits has no valid run and epoch") as refused:
            look()
        assert "from a backup" in refused.value.fix


@pytest.mark.parametrize(
    "change",
    [
        "update _statebed_commits set epoch = 9",
        "update _statebed_commits set epoch = 1",
        "update _statebed_commits set run = 0",
        "delete from _statebed_commits",
    ],
)
def test_a_position_that_is_edited_while_the_job_runs_is_an_error(sql: Any, change: str) -> None:
    sink = sql.sink(APPEND)
    sink.open(1)
    sink.publish(publication(1, 2, ROWS))
    before = sql.run("select * from results")
    sql.run(change)
    with pytest.raises(SinkError, match="this run left run 1, epoch 2") as raised:
        sink.publish(publication(1, 3, ROWS))
    assert "_statebed_commits" in raised.value.what
    assert sql.run("select * from results") == before


def test_an_epoch_that_is_published_twice_in_one_run_is_still_skipped(sql: Any) -> None:
    sink = sql.sink(APPEND)
    sink.open(1)
    sink.publish(publication(1, 2, ROWS))
    before = sql.run("select * from results")
    sink.publish(publication(1, 2, ROWS))
    assert sql.run("select * from results") == before
    again = sql.sink(APPEND)
    again.open(2)
    again.publish(publication(2, 2, ROWS))
    assert sql.run("select * from results") == before
    again.publish(publication(2, 3, ROWS))
    assert len(sql.run("select * from results")) == 2 * len(before)
