"""Properties of PostgreSQL: secrets, time-outs, a server that goes away, existing columns, schemas."""

import random
import threading
import time
from typing import Any

import pyarrow as pa
import pytest
from published import publication

from statebed.errors import InputError, SecretInUrlError, SinkError, SinkUnavailableError
from statebed.format.stream_schema import Output
from statebed.sinks.sql import Postgres, SqlTable, SqlTableSink, TableName
from statebed.sinks.sql import sql_table as table_module

OUTPUT = Output(pa.schema([("k", pa.string()), ("n", pa.int64())]))


def sink(database: Postgres, table: TableName | None = None, output: Output = OUTPUT) -> SqlTableSink:
    written = SqlTable(table or TableName("results"), output, (), None)
    return SqlTableSink(sink_id="out", job_id="rides", database=database, table=written)


@pytest.mark.parametrize(
    "dsn",
    ["postgresql://me:hunter2@db.example/results", "host=db.example password=hunter2", "host=x sslpassword=hunter2"],
)
def test_a_password_in_the_connection_string_is_refused_and_not_repeated(dsn: str) -> None:
    with pytest.raises(SecretInUrlError) as caught:
        Postgres(dsn, password=None, timeout_seconds=1)
    assert "hunter2" not in str(caught.value)
    assert "PGPASSWORD" in caught.value.fix


def test_a_broken_connection_string_is_not_repeated_either() -> None:
    with pytest.raises(InputError, match="not a PostgreSQL connection string") as caught:
        Postgres("host=db.example passw ord=hunter2", password=None, timeout_seconds=1)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_a_password_is_in_no_text_about_the_sink(postgres: Any) -> None:
    made = sink(Postgres(postgres.dsn, password="wrong-hunter2", timeout_seconds=5))
    assert "hunter2" not in made.described
    assert str(postgres.server.folder) in made.described
    with pytest.raises(SinkUnavailableError, match="password authentication failed") as caught:
        made.check(last_number=0)
    assert "hunter2" not in str(caught.value)


def test_the_password_may_come_from_the_environment(postgres: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", postgres.password)
    sink(Postgres(postgres.dsn, password=None, timeout_seconds=30)).check(last_number=0)


def test_a_server_that_is_not_there_is_tried_again_and_then_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "_WAIT_SECONDS", 0.01)
    made = sink(Postgres("host=/nonexistent dbname=results", password=None, timeout_seconds=5))
    with pytest.raises(SinkUnavailableError, match="is unreachable") as caught:
        made.publish(publication(1, 2, pa.table({"k": ["a"], "n": [1]})))
    assert caught.value.where == "postgresql /nonexistent/results"
    assert "  Is the server running" in caught.value.what
    assert "\t" not in caught.value.what


def test_p2_a_connection_that_breaks_off_in_mid_epoch_is_made_anew_and_the_epoch_written_once(
    postgres: Any, caplog: pytest.LogCaptureFixture
) -> None:
    made = sink(Postgres(postgres.dsn, password=postgres.password, timeout_seconds=30))
    made.open(1)
    broken: list[Any] = []

    class Breaking(type(publication(1, 2))):  # type: ignore[misc]  # a publication that outlives its connection
        def read(self, file: Any) -> bytes:
            data: bytes = super().read(file)
            if not broken:
                broken.append(
                    postgres.run(
                        "select pg_terminate_backend(pid) from pg_stat_activity "
                        "where datname = current_database() and pid <> pg_backend_pid()"
                    )
                )
            return data

    whole = publication(1, 2, pa.table({"k": ["a"], "n": [1]}), pa.table({"k": ["b"], "n": [2]}))
    made.publish(Breaking(**vars(whole)))
    assert broken == [[(True,)]]
    assert "sink out will be retried" in caplog.text
    assert sorted(postgres.run("select k, n from results")) == [("a", 1), ("b", 2)]


def test_p3_a_transaction_whose_client_sleeps_does_not_keep_the_next_run_waiting_for_ever(postgres: Any) -> None:
    sleeper = Postgres(postgres.dsn, password=postgres.password, timeout_seconds=1)
    made, following = (
        sink(sleeper),
        sink(Postgres(postgres.dsn, password=postgres.password, timeout_seconds=60)),
    )
    made.open(1)
    locked, awake = threading.Event(), threading.Event()
    outcome: list[SinkError] = []

    def sleep_in_a_transaction() -> None:
        try:
            with sleeper.transaction() as transaction:
                made._position(transaction)
                locked.set()
                awake.wait(60)
                transaction.run("select 1")
        except SinkError as error:
            outcome.append(error)

    thread = threading.Thread(target=sleep_in_a_transaction)
    thread.start()
    assert locked.wait(30)
    started = time.monotonic()
    following.open(4)
    assert time.monotonic() - started < 30
    awake.set()
    thread.join(30)
    assert "terminat" in outcome[0].what or "timeout" in outcome[0].what


def test_a_lock_that_is_not_given_in_time_is_an_error_and_no_wait_for_ever(postgres: Any) -> None:
    patient = Postgres(postgres.dsn, password=postgres.password, timeout_seconds=60)
    made = sink(patient)
    made.open(1)
    with patient.transaction() as transaction:
        made._position(transaction)
        with pytest.raises(SinkError, match=r"lock timeout|statement timeout"):
            sink(Postgres(postgres.dsn, password=postgres.password, timeout_seconds=0.3)).open(2)


def test_a_table_may_be_in_a_schema_and_has_its_commits_there(postgres: Any) -> None:
    postgres.run('create schema "my results"')
    made = sink(
        Postgres(postgres.dsn, password=postgres.password, timeout_seconds=30), TableName("minutes", "my results")
    )
    made.check(last_number=0)
    made.probe()
    made.open(1)
    made.publish(publication(1, 2, pa.table({"k": ["a"], "n": [1]})))
    assert postgres.run('select * from "my results".minutes') == [("a", 1)]
    assert postgres.run('select epoch from "my results"._statebed_commits') == [(2,)]


@pytest.mark.parametrize(
    ("kind", "column", "fits"),
    [
        (pa.string(), "uuid", True),
        (pa.string(), "character varying(10)", True),
        (pa.string(), "integer", False),
        (pa.int32(), "bigint", True),
        (pa.int64(), "integer", False),
        (pa.int64(), "numeric", True),
        (pa.int64(), "numeric(5,0)", False),
        (pa.float64(), "real", False),
        (pa.decimal128(10, 2), "numeric(12,2)", True),
        (pa.decimal128(10, 2), "numeric(12,4)", True),
        (pa.decimal128(10, 2), "numeric(12,1)", False),
        (pa.decimal128(10, 2), "numeric", True),
        (pa.timestamp("us", "UTC"), "timestamp with time zone", True),
        (pa.timestamp("us", "UTC"), "timestamp without time zone", False),
        (pa.list_(pa.int64()), "json", True),
        (pa.list_(pa.int64()), "integer[]", False),
        (pa.duration("us"), "interval", True),
        (pa.bool_(), "boolean", True),
    ],
)
def test_an_existing_column_is_used_when_it_holds_every_value(
    postgres: Any, kind: pa.DataType, column: str, fits: bool
) -> None:
    postgres.run(f"create table results (x {column})")
    made = sink(
        Postgres(postgres.dsn, password=postgres.password, timeout_seconds=30), output=Output(pa.schema([("x", kind)]))
    )
    if fits:
        made.check(last_number=0)
    else:
        with pytest.raises(InputError, match="the table cannot hold the rows"):
            made.check(last_number=0)


def test_a_key_of_another_type_is_found_by_that_type(postgres: Any) -> None:
    one = "00000000-0000-0000-0000-000000000001"
    postgres.run("create table results (k uuid primary key, n json)")
    output = Output(pa.schema([("k", pa.string()), ("n", pa.list_(pa.int64()))]))
    database = Postgres(postgres.dsn, password=postgres.password, timeout_seconds=30)
    made = SqlTableSink(
        sink_id="out", job_id="rides", database=database, table=SqlTable(TableName("results"), output, ("k",), None)
    )
    made.open(1)
    for epoch, values in ((2, [1]), (3, [1, 2])):
        made.publish(publication(1, epoch, pa.table({"k": [one], "n": [values]}, schema=output.columns)))
    assert [(str(key), value) for key, value in postgres.run("select k, n from results")] == [(one, [1, 2])]
    with pytest.raises(SinkError, match="the key k = 'no', which a column of type uuid does not keep"):
        made.publish(publication(1, 4, pa.table({"k": ["no"], "n": [[1]]}, schema=output.columns)))


@pytest.mark.parametrize("letter", ["x", "ö"])
def test_tables_whose_names_begin_with_the_same_63_bytes_are_one_for_two_jobs(postgres: Any, letter: str) -> None:
    database = Postgres(postgres.dsn, password=postgres.password, timeout_seconds=30)
    first = sink(database, TableName(letter * 70 + "one"))
    first.open(1)
    first.publish(publication(1, 2, pa.table({"k": ["a"], "n": [1]})))
    written = SqlTable(TableName(letter * 70 + "two"), OUTPUT, (), None)
    second = SqlTableSink(sink_id="out", job_id="other", database=database, table=written)
    for step in (second.peek, lambda: second.open(1)):
        with pytest.raises(InputError, match="the table belongs to rides/out, not to other/out"):
            step()
    position = first.peek()
    assert position is not None
    assert position.epoch == 2
    shorter = sink(database, TableName(letter * 20))
    assert shorter.peek() is None


def test_a_key_column_that_ignores_case_is_refused(postgres: Any) -> None:
    postgres.run("create extension if not exists citext")
    postgres.run("create table results (k citext, n bigint)")
    database = Postgres(postgres.dsn, password=postgres.password, timeout_seconds=30)
    keyed = SqlTable(TableName("results"), OUTPUT, ("k",), None)
    with pytest.raises(InputError, match="its key column k has the type citext, which treats different keys as equal"):
        SqlTableSink(sink_id="out", job_id="rides", database=database, table=keyed).check(last_number=0)
    sink(database).check(last_number=0)


@pytest.mark.parametrize(
    ("kind", "kept", "changed"),
    [
        ("char(4)", ["a", "", " b"], "a "),
        ("uuid", ["0b5bafb8-8dd2-4f5c-9f5c-3c8a3c3f9f10"], "0B5BAFB8-8DD2-4F5C-9F5C-3C8A3C3F9F10"),
    ],
)
def test_a_key_that_its_column_would_change_is_refused(postgres: Any, kind: str, kept: list[str], changed: str) -> None:
    postgres.run(f"create table results (k {kind}, n bigint)")
    database = Postgres(postgres.dsn, password=postgres.password, timeout_seconds=30)
    keyed = SqlTableSink(
        sink_id="out", job_id="rides", database=database, table=SqlTable(TableName("results"), OUTPUT, ("k",), None)
    )
    keyed.open(1)
    keyed.publish(publication(1, 2, pa.table({"k": [*kept, None], "n": range(len(kept) + 1)}, schema=OUTPUT.columns)))
    with pytest.raises(SinkError, match="does not keep as it is: different keys could become equal"):
        keyed.publish(publication(1, 3, pa.table({"k": [changed], "n": [7]}, schema=OUTPUT.columns)))
    assert sorted(row[0] for row in postgres.run("select n from results")) == list(range(len(kept) + 1))


@pytest.mark.parametrize(
    ("kind", "value", "fix"),
    [
        (pa.string(), "a\0b", "remove the character NUL"),
        (pa.timestamp("us", "UTC"), -(1 << 62), "filter the row"),
        (pa.string(), "".join(random.Random(1).choices("abcdefghijklmnop", k=9_000)), "choose a shorter key"),
    ],
)
def test_a_row_that_postgresql_refuses_has_a_fix_and_can_be_left_out(
    postgres: Any, kind: pa.DataType, value: Any, fix: str
) -> None:
    output = Output(pa.schema([("k", kind)]))
    database = Postgres(postgres.dsn, password=postgres.password, timeout_seconds=30)
    written = SqlTableSink(
        sink_id="out", job_id="rides", database=database, table=SqlTable(TableName("results"), output, ("k",), None)
    )
    written.open(1)
    refused = publication(1, 2, pa.table([pa.array([value], kind)], schema=output.columns))
    with pytest.raises(SinkError) as caught:
        written.publish(refused)
    assert fix in caught.value.fix
    assert not caught.value.is_of_target
    written.skip(refused)
