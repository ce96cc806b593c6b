"""Tables of SQL databases: rows and epoch in one transaction, by key or not, in SQLite and in PostgreSQL alike."""

import datetime as dt
import decimal
import itertools
import threading
from typing import Any

import pyarrow as pa
import pytest
from effort import examples
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from published import NOT_UTF8, publication

from statebed.checkpoint import Publication
from statebed.errors import FencedError, InputError, RollbackError, SinkError, UnsupportedTypeError
from statebed.format.stream_schema import Changes, Output
from statebed.operators.changelog import consolidated
from statebed.protocol import Guarantee, SinkPosition
from statebed.sinks.sql import TableName
from statebed.sinks.sql import sql_table as table_module

APPEND = Output(pa.schema([("k", pa.string()), ("n", pa.int64())]))
CHANGES = Output(APPEND.columns, Changes.CHANGELOG)
numbers = itertools.count()


def rows(*values: tuple[str | None, int | None]) -> pa.Table:
    return pa.table(list(map(list, zip(*values, strict=True))) or [[], []], schema=APPEND.columns)


def changes(*values: tuple[str | None, int | None, int]) -> pa.Table:
    weight = pa.field("_weight", pa.int64(), nullable=False)
    return pa.table(list(map(list, zip(*values, strict=True))), schema=pa.schema([*APPEND.columns, weight]))


def test_an_epoch_is_added_once_however_often_it_is_published(sql: Any) -> None:
    sink = sql.sink(APPEND)
    sink.check(last_number=0)
    sink.probe()
    assert sink.open(1) is None
    for _ in range(3):
        sink.publish(publication(1, 2, rows(("a", 1), (None, None)), rows(("", 3))))
    sink.publish(publication(1, 3))
    following = sql.sink(APPEND)
    following.check(last_number=2)
    assert following.open(5) == SinkPosition(run=1, epoch=2)
    following.publish(publication(5, 2, rows(("a", 1))))
    following.publish(publication(5, 6, rows(("b", 4))))
    assert sql.rows() == sorted([("a", 1), (None, None), ("", 3), ("b", 4)], key=repr)
    assert sql.run("select table_name, owner, run, epoch from _statebed_commits") == [("results", "rides/out", 5, 6)]
    assert sink.guarantee is Guarantee.EXACTLY_ONCE


def test_a_changelog_is_inserted_updated_and_deleted_by_its_key(sql: Any) -> None:
    sink = sql.sink(CHANGES, key=["k"])
    sink.open(1)
    sink.publish(publication(1, 2, changes(("a", 1, 1), ("b", 1, 1)), changes((None, 1, 1), ("d", 1, 1))))
    assert sql.rows() == sorted([("a", 1), ("b", 1), (None, 1), ("d", 1)], key=repr)
    sink.publish(
        publication(
            1,
            3,
            changes(("a", 1, -1), ("a", 2, 1), ("b", 1, -1)),
            changes((None, 1, -1), (None, 5, 1), ("c", 7, 1)),
        )
    )
    assert sql.rows() == sorted([("a", 2), (None, 5), ("c", 7), ("d", 1)], key=repr)
    sink.publish(publication(1, 4, changes((None, 5, -1), ("d", 1, -1))))
    assert sql.rows() == [("a", 2), ("c", 7)]


def test_the_changes_of_one_key_may_be_in_the_files_of_several_subtasks(sql: Any) -> None:
    sink = sql.sink(CHANGES, key=["k"])
    sink.open(1)
    sink.publish(publication(1, 2, changes(("a", 1, 1), ("b", 1, 1), ("c", 1, 1))))
    added, taken = changes(("a", 1, 1), ("b", 2, 1), ("x", 1, 1)), changes(("a", 1, -1), ("b", 1, -1), ("x", 1, -1))
    sink.publish(publication(1, 3, added, taken, changes(("c", 1, -1))))
    assert sql.rows() == [("a", 1), ("b", 2)]  # x came and went inside the epoch


def test_a_row_without_retraction_takes_the_place_of_the_older_one(sql: Any) -> None:
    """This happens with a key whose state expired, and with an append-only stream with a declared key."""
    sink = sql.sink(APPEND, key=["k"])
    sink.open(1)
    sink.publish(publication(1, 2, rows(("a", 1), ("b", 1))))
    sink.publish(publication(1, 3, rows(("a", 2))))
    assert sql.rows() == [("a", 2), ("b", 1)]


def test_p9_a_key_that_does_not_tell_rows_apart_is_named_and_nothing_is_written(sql: Any) -> None:
    sink = sql.sink(CHANGES, key=["k"])
    sink.open(1)
    with pytest.raises(SinkError, match=r"epoch 2 has 2 rows with the key \{'k': 'a'\}"):
        sink.publish(publication(1, 2, changes(("a", 1, 1), ("b", 1, 1)), changes(("a", 2, 1))))
    with pytest.raises(SinkError, match="2 rows with the key"):
        sink.publish(publication(1, 2, changes(("a", 1, 2))))
    assert sql.rows() == []
    assert sink.open(4) == SinkPosition(run=1, epoch=0)


def test_p3_a_superseded_run_can_neither_publish_nor_open_nor_go_back(sql: Any) -> None:
    old, new = sql.sink(APPEND, epoch_column="epoch"), sql.sink(APPEND, epoch_column="epoch")
    old.open(1)
    old.publish(publication(1, 2, rows(("a", 1))))
    new.open(4)
    with pytest.raises(FencedError, match="opened by run 4; run 1 is superseded"):
        old.publish(publication(1, 5, rows(("b", 1))))
    with pytest.raises(FencedError):
        old.open(1)
    with pytest.raises(FencedError):
        old.roll_back(1, 0)
    assert sql.rows() == [("a", 1, 2)]


def test_p3_a_run_that_opens_while_an_older_one_writes_comes_after_it_and_knows_its_epoch(sql: Any) -> None:
    old, new = sql.sink(CHANGES, key=["k"]), sql.sink(CHANGES, key=["k"])
    old.open(1)
    writing, go_on = threading.Event(), threading.Event()

    class Slow(Publication):
        def read(self, file: Any) -> bytes:
            writing.set()
            assert go_on.wait(30)
            return super().read(file)

    whole = publication(1, 2, changes(("a", 1, 1)))
    found: list[SinkPosition | None] = []
    threads = [
        threading.Thread(target=lambda: old.publish(Slow(**vars(whole)))),
        threading.Thread(target=lambda: found.append(new.open(4))),
    ]
    threads[0].start()
    assert writing.wait(30)
    threads[1].start()
    threads[1].join(0.5)
    assert threads[1].is_alive(), "the newer run has to wait for the transaction"
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert found == [SinkPosition(run=1, epoch=2)]
    assert sql.run("select run, epoch from _statebed_commits") == [(4, 2)]
    assert sql.rows() == [("a", 1)]


def test_p3_two_runs_that_open_a_new_table_at_once_leave_the_newer_in_charge(sql: Any) -> None:
    outcomes: dict[int, str] = {}
    ready = threading.Barrier(4)

    def opened(run: int) -> None:
        sink = sql.sink(APPEND)
        ready.wait(30)
        try:
            sink.open(run)
            outcomes[run] = "open"
        except FencedError:
            outcomes[run] = "fenced"

    threads = [threading.Thread(target=opened, args=(run,)) for run in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(outcomes) == 4
    assert outcomes[4] == "open"
    assert sql.run("select run from _statebed_commits") == [(4,)]


def test_p2_a_failure_in_mid_epoch_leaves_the_table_as_it_was(sql: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "BATCH_ROWS", 2)
    sink = sql.sink(APPEND)
    sink.open(1)
    sink.publish(publication(1, 2, rows(("a", 1))))
    whole = publication(1, 3, rows(("b", 1), ("c", 1), ("d", 1)), rows(("e", 1)))
    data = whole.store.get(whole.files[1].path)
    whole.store.put(whole.files[1].path, data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(Exception, match="CORRUPT"):
        sink.publish(whole)
    assert sql.rows() == [("a", 1)]
    whole.store.put(whole.files[1].path, data)
    sink.publish(whole)
    assert sql.rows() == [("a", 1), ("b", 1), ("c", 1), ("d", 1), ("e", 1)]


def test_rows_of_later_epochs_go_where_a_column_says_which_they_are(sql: Any) -> None:
    sink = sql.sink(APPEND, epoch_column="epoch")
    sink.open(1)
    for epoch in (2, 3, 4):
        sink.publish(publication(1, epoch, rows(("a", epoch))))
    sink.roll_back(1, 4)
    forked = sql.sink(APPEND, epoch_column="epoch")
    assert forked.open(5) == SinkPosition(run=1, epoch=4)
    forked.roll_back(5, 2)
    forked.publish(publication(5, 3, rows(("a", 30))))
    forked.publish(publication(5, 6, rows(("a", 60))))
    assert sql.rows() == [("a", 2, 2), ("a", 30, 3), ("a", 60, 6)]


@pytest.mark.parametrize(("output", "key"), [(APPEND, ()), (CHANGES, ("k",))])
def test_a_table_that_cannot_go_back_says_so_and_stays_as_it_is(sql: Any, output: Output, key: Any) -> None:
    sink = sql.sink(output, key=key)
    sink.open(1)
    for epoch in (2, 3):
        sink.publish(publication(1, epoch, changes(("k", epoch, 1)) if key else rows(("k", epoch))))
    with pytest.raises(RollbackError, match="holds epoch 3 and cannot be rolled back to 2") as caught:
        sink.roll_back(1, 2)
    assert "set epoch = 2 in its row of _statebed_commits" in caught.value.fix
    assert len(sql.rows()) == (1 if key else 2)


def test_a_table_of_a_lost_state_is_refused(sql: Any) -> None:
    sink = sql.sink(APPEND)
    sink.open(7)
    sink.publish(publication(7, 8, rows(("a", 1))))
    with pytest.raises(InputError, match="the job's log ends at 0"):
        sql.sink(APPEND).check(last_number=0)
    sql.sink(APPEND).check(last_number=8)


def test_a_table_has_one_owner(sql: Any) -> None:
    sql.sink(APPEND).open(1)
    sql.sink(APPEND, table="others", sink_id="other").open(1)
    other = sql.sink(APPEND, sink_id="other")
    with pytest.raises(InputError, match="the table belongs to rides/out, not to rides/other"):
        other.check(last_number=9)
    with pytest.raises(InputError, match="the table belongs to rides/out"):
        other.open(5)
    with pytest.raises(InputError, match="the table belongs to rides/out"):
        other.publish(publication(5, 6, rows(("a", 1))))
    assert sql.rows() == []


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(st.none(), st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))))
@example(["\\.", "", None, "NULL", "\\N", '"', "a,b", "\r\n", " ", "\\x00"])
def test_every_text_comes_out_as_it_went_in(sql: Any, texts: list[str | None]) -> None:
    """Alone in its row: an empty line is a null, and a line of one mark must not end the input."""
    output = Output(pa.schema([("s", pa.string())]))
    sink = sql.sink(output, table=f"t{next(numbers)}")
    sink.open(1)
    sink.publish(publication(1, 2, pa.table({"s": texts}, schema=output.columns)))
    found = sql.run(f"select s from {sink._table.name.sql}")
    assert sorted(map(repr, found)) == sorted(repr((text,)) for text in texts)


def test_a_probe_leaves_nothing(sql: Any) -> None:
    sink = sql.sink(APPEND, key=["k"])
    sink.probe()
    with sql.database().transaction() as transaction:
        assert transaction.columns(TableName("results")) is None
        assert transaction.columns(TableName("_statebed_commits")) is None


TYPES = pa.table(
    {
        "b": pa.array([True, None]),
        "i8": pa.array([-5, None], pa.int8()),
        "i16": pa.array([-500, None], pa.int16()),
        "i32": pa.array([2**31 - 1, None], pa.int32()),
        "i64": pa.array([-(2**63), None], pa.int64()),
        "f32": pa.array([0.5, None], pa.float32()),
        "f64": pa.array([1 / 3, None], pa.float64()),
        "s": pa.array(["a \"b\", \\c\n'd' é", None]),
        "bin": pa.array([b"\x00\xff\\", None]),
        "dec": pa.array([decimal.Decimal("12345678901234567890.12"), None], pa.decimal128(30, 2)),
        "d": pa.array([dt.date(2026, 1, 31), None]),
        "ts": pa.array([dt.datetime(2026, 1, 31, 12, 0, 0, 5, dt.UTC), None], pa.timestamp("us", "UTC")),
        "ntz": pa.array([dt.datetime(2026, 1, 31, 12), None], pa.timestamp("us")),  # noqa: DTZ001 - without a zone
        "dur": pa.array([dt.timedelta(days=-1, microseconds=3), None], pa.duration("us")),
        "list": pa.array([[1, None], None], pa.list_(pa.int64())),
        "struct": pa.array([{"x": 1.5, "y": dt.date(2026, 1, 1)}, None]),
        "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
    }
)


@pytest.mark.parametrize("key", [(), ("i64", "s", "bin", "dec", "ts"), ("list", "struct")])
def test_every_type_comes_out_as_it_went_in(sql: Any, key: Any) -> None:
    output = Output(TYPES.schema)
    sink = sql.sink(output, key=key)
    sink.open(1)
    sql.sink(output, key=key).check(last_number=1)  # takes the table that it made
    sink.publish(publication(1, 2, TYPES))
    if key:
        sink.publish(publication(1, 3, TYPES))
    (filled, empty) = sql.run("select * from results order by i64 is null")
    assert empty == (None,) * len(TYPES.schema)
    if sql.name == "postgres":
        expected = tuple(TYPES.slice(0, 1).to_pylist()[0].values())
        assert filled[:-2] == expected[:-2]
        assert filled[-2:] == ({"x": 1.5, "y": "2026-01-01"}, {"k": 1})
    else:
        assert filled == (
            *(1, -5, -500, 2**31 - 1, -(2**63), 0.5, 1 / 3, "a \"b\", \\c\n'd' é", b"\x00\xff\\"),
            *("12345678901234567890.12", "2026-01-31", "2026-01-31 12:00:00.000005Z", "2026-01-31 12:00:00.000000"),
            *(-86_399_999_997, "[1,null]", '{"x":1.5,"y":"2026-01-01"}', '{"k":1}'),
        )


def test_a_type_that_the_database_lacks_is_refused_when_the_sink_is_made(sql: Any) -> None:
    with pytest.raises(UnsupportedTypeError, match="no type for x"):
        sql.sink(Output(pa.schema([("x", pa.null())])))


def test_not_a_number_and_the_infinities(sql: Any) -> None:
    output = Output(pa.schema([("x", pa.float64())]))
    sink = sql.sink(output)
    sink.open(1)
    sink.publish(publication(1, 2, pa.table({"x": [float("nan"), float("inf"), float("-inf")]})))
    found = [row[0] for row in sql.run("select x from results")]
    assert found[1:] == [float("inf"), float("-inf")]
    assert found[0] is None if sql.name == "sqlite" else found[0] != found[0]


def test_an_existing_table_is_used_and_its_other_columns_stay(sql: Any) -> None:
    sql.run("create table results (note text default 'new', n numeric, k varchar(5))")
    sql.run("insert into results values ('mine', 1, 'a')")
    sink = sql.sink(CHANGES, key=["k"])
    sink.check(last_number=0)
    sink.open(1)
    sink.publish(publication(1, 2, changes(("a", 1, -1), ("a", 2, 1), ("b", 5, 1))))
    assert sql.rows("select note, k, n from results") == [("mine", "a", 2), ("new", "b", 5)]


def test_an_existing_table_that_cannot_take_the_rows_is_refused_with_every_reason(sql: Any) -> None:
    sql.run("create table results (k integer, other text not null)")
    with pytest.raises(InputError) as caught:
        sql.sink(APPEND).check(last_number=0)
    assert "it has no column n" in caught.value.what
    assert "its column other may not be null, has no default" in caught.value.what
    assert "k is string" in caught.value.what
    assert sql.rows() == []


@pytest.mark.parametrize("collation", ["NOCASE", "RTRIM"])
def test_a_key_column_that_treats_different_keys_as_equal_is_refused(sql: Any, collation: str) -> None:
    if sql.name == "postgres":
        sql.run(f"create collation {collation} (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    sql.run(f"create table results (k text collate {collation}, n bigint)")
    with pytest.raises(InputError, match=f"(?i)its key column k has the collation {collation}, which treats different"):
        sql.sink(CHANGES, key=["k"]).check(last_number=0)
    sql.sink(CHANGES, key=["n"]).check(last_number=0)
    added = sql.sink(APPEND)
    added.open(1)
    added.publish(publication(1, 2, rows(("Ann", 1), ("ann", 2))))
    assert sql.rows() == [("Ann", 1), ("ann", 2)]


@pytest.mark.parametrize("key", [["k", "n"], ["n"], []])
@pytest.mark.parametrize("table", ["results", 'My "Table"; drop'])
def test_the_index_follows_the_declared_key(sql: Any, key: list[str], table: str) -> None:
    first = sql.sink(APPEND, key=["k"], table=table)
    first.open(1)
    whole = publication(1, 2, rows(("a", 1), ("a", 2)))
    with pytest.raises(SinkError, match="declare a key that identifies every row"):
        first.publish(whole)
    for run in (3, 4):
        sink = sql.sink(APPEND, key=key, table=table)
        sink.open(run)
    sink.publish(publication(4, 2, rows(("a", 1), ("a", 2))))
    name = TableName(table).sql
    assert sql.rows(f"select * from {name}") == [("a", 1), ("a", 2)]
    if key:
        with pytest.raises(Exception, match=r"(?i)unique"):
            sql.run(f"insert into {name} values ('a', 1)")


def test_a_key_that_the_rows_of_the_table_contradict_leaves_the_index(sql: Any) -> None:
    first = sql.sink(APPEND, key=["k"])
    first.open(1)
    first.publish(publication(1, 2, rows(("a", 1), ("b", 1))))
    with pytest.raises(SinkError, match=r"(?i)unique"):
        sql.sink(APPEND, key=["n"]).open(3)
    with pytest.raises(Exception, match=r"(?i)unique"):
        sql.run("insert into results values ('a', 5)")


@pytest.mark.parametrize("key", [["k"], ["n", "k"]])
def test_a_key_that_rows_of_the_table_share_is_refused(sql: Any, key: list[str]) -> None:
    """The table was written without a key. An update of the key would make all these rows equal."""
    first = sql.sink(APPEND)
    first.open(1)
    first.publish(publication(1, 2, rows(("a", 1), ("a", 1), (None, 1))))
    changed = sql.sink(CHANGES, key=key)
    for start in (changed.probe, lambda: changed.open(3)):
        with pytest.raises(InputError, match=r"several rows with the key .*k 'a'.*, but the sink keeps one row per"):
            start()
    sql.run("delete from results where k = 'a'")
    assert sql.sink(CHANGES, key=key).open(3) == SinkPosition(run=1, epoch=2)


def test_rows_that_share_a_key_of_null_are_found_beside_a_unique_index(sql: Any) -> None:
    """Two nulls are distinct in a unique index unless it says otherwise."""
    first = sql.sink(APPEND)
    first.open(1)
    first.publish(publication(1, 2, rows(("a", 1), (None, 1), (None, 2))))
    sql.run("create unique index i on results (k)")
    with pytest.raises(InputError, match="several rows with the key k None"):
        sql.sink(CHANGES, key=["k"]).open(3)
    sql.run("delete from results where k is null and n = 2")
    assert sql.sink(CHANGES, key=["k"]).open(3) == SinkPosition(run=1, epoch=2)


@pytest.mark.parametrize(
    ("index", "by_n", "by_n_and_k"),
    [
        ("unique index i on results (n)", True, True),
        ("unique index i on results (n, k)", False, True),
        ("unique index i on results (k)", False, True),
        ("unique index i on results (n) where n > 5", False, False),
        ("unique index i on results (abs(n))", False, False),
        ("index i on results (n)", False, False),
    ],
)
def test_only_a_unique_index_of_key_columns_spares_a_look_at_the_rows(
    sql: Any, index: str, by_n: bool, by_n_and_k: bool
) -> None:
    sql.run("create table results (k text, n bigint)")
    sql.run(f"create {index}")
    with sql.database().transaction() as transaction:
        for key, unique in ((["n"], by_n), (["n", "k"], by_n_and_k)):
            assert transaction.has_unique_index(TableName("results"), key) is unique


def test_names_with_any_characters_are_names(sql: Any) -> None:
    name, column = 'My "Table"; drop', 'a "b" ?%s$1'
    output = Output(pa.schema([(column, pa.string()), ("select", pa.int64())]), Changes.CHANGELOG)
    sink = sql.sink(output, key=[column], table=name)
    sink.check(last_number=0)
    sink.open(1)
    for epoch, value in ((2, 1), (3, 2)):
        sink.publish(publication(1, epoch, pa.table({column: ["x"], "select": [value], "_weight": [1]})))
    assert sql.run('select * from "My ""Table""; drop"') == [("x", 2)]


def test_what_only_has_a_key_is_inserted_and_deleted(sql: Any) -> None:
    output = Output(pa.schema([("k", pa.string())]), Changes.CHANGELOG)
    sink = sql.sink(output, key=["k"])
    sink.open(1)
    sink.publish(publication(1, 2, pa.table({"k": ["a", None], "_weight": [1, 1]})))
    sink.publish(publication(1, 3, pa.table({"k": ["b", None], "_weight": [1, -1]})))
    assert sql.rows() == [("a",), ("b",)]


def test_an_epoch_larger_than_a_batch_is_one_transaction(sql: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "BATCH_ROWS", 1_000)
    sink = sql.sink(CHANGES, key=["k"])
    sink.open(1)
    count = 10_500
    first = pa.table({"k": [f"k{n}" for n in range(count)], "n": range(count), "_weight": [1] * count})
    sink.publish(publication(1, 2, first))
    half = first.slice(0, count // 2)
    taken = half.set_column(2, "_weight", pa.array([-1] * half.num_rows))
    added = half.set_column(1, "n", pa.array([-n for n in range(half.num_rows)])).slice(0, 100)
    sink.publish(publication(1, 3, consolidated(pa.concat_tables([taken, added]))))
    assert sql.run("select count(*), min(n), max(n) from results") == [(count - half.num_rows + 100, -99, count - 1)]


@pytest.mark.parametrize("output", [APPEND, CHANGES])
def test_an_epoch_that_is_skipped_advances_the_position_and_changes_no_row(sql: Any, output: Output) -> None:
    sink = sql.sink(output, key=["k"])
    sink.open(1)
    whole = changes(("a", 1, 1)) if output is CHANGES else rows(("a", 1))
    sink.publish(publication(1, 2, whole))
    for _ in range(2):
        sink.skip(publication(1, 3, changes(("b", 1, 1)) if output is CHANGES else rows(("b", 1))))
    assert sink.peek() == SinkPosition(run=1, epoch=3)
    assert sql.rows() == [("a", 1)]


HIDDEN = pytest.mark.parametrize(
    ("columns", "problem"),
    [
        (["a\0b"], {"sqlite": "NUL", "postgres": "NUL"}),
        ([""], {"postgres": "it is empty"}),
        (["x" * 64], {"postgres": "longer than 63 bytes"}),
        (["é" * 32], {"postgres": "longer than 63 bytes"}),
        (["ctid"], {"postgres": "hidden column"}),
        (["k", "K"], {"sqlite": "'k' and 'K' are the same column"}),
        (["ä", "Ä"], {}),
        (["rowid", "select", "x" * 63, "\N{CYRILLIC CAPITAL LETTER KA}", "K"], {}),
    ],
)


@HIDDEN
def test_a_column_that_the_database_cannot_have_is_refused_before_the_start(
    sql: Any, columns: list[str], problem: dict[str, str]
) -> None:
    output = Output(pa.schema([(name, pa.int64()) for name in columns]))
    if sql.name in problem:
        with pytest.raises(InputError, match=problem[sql.name]):
            sql.sink(output)
        return
    sink = sql.sink(output)
    sink.open(1)
    sink.publish(publication(1, 2, pa.table([[1]] * len(columns), names=columns)))
    sql.sink(output).check(last_number=2)
    assert sql.rows() == [(1,) * len(columns)]


def test_times_of_any_year_are_written_as_they_are(sql: Any) -> None:
    """Arrow's text has wrong years beyond ±32767, and a message instead of a day that is far away."""
    moments, days = [1 << 60, -62_135_596_800_000_001, None], [36_500_000, -719_163, None]
    output = Output(pa.schema([("at", pa.timestamp("us", "Europe/Berlin")), ("day", pa.date32())]))
    sink = sql.sink(output)
    sink.open(1)
    sink.publish(publication(1, 2, pa.table([moments, days], schema=output.columns)))
    if sql.name == "sqlite":
        late, early = ("38504-08-17 21:30:06.846976Z", "101903-08-11"), ("0000-12-31 23:59:59.999999Z", "0000-12-31")
        assert sql.run("select * from results") == [late, early, (None, None)]
        return
    query = "select (at at time zone 'UTC')::text, day::text from results"
    early = ("0001-12-31 23:59:59.999999 BC", "0001-12-31 BC")
    assert sql.run(query) == [("38504-08-17 21:30:06.846976", "101903-08-11"), early, (None, None)]


def test_text_that_is_not_utf8_is_named(sql: Any) -> None:
    sink = sql.sink(APPEND)
    sink.open(1)
    with pytest.raises(SinkError, match="the column k that is not UTF-8") as caught:
        sink.publish(publication(1, 2, pa.table({"k": NOT_UTF8, "n": [1, 2]})))
    assert "make_valid_utf8(k)" in caught.value.fix
    assert not caught.value.is_of_target  # other rows would not fail
    sink.publish(publication(1, 2, rows(("a", 1))))
