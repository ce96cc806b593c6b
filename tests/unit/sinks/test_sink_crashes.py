"""A crash between any two steps: each epoch is in the table once, and a superseded run adds nothing."""

import itertools
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from effort import examples
from lake_tables import Lake
from published import debezium_rows
from unit.sinks import publishing
from unit.sinks.publishing import KEYS, commit, counter_of, expected, make_sink, open_run

from statebed.checkpoint import Origin, Publisher, RollbackPolicy, RunOptions
from statebed.errors import FencedError, RollbackError
from statebed.operators.changelog import folded
from statebed.sinks import read_table
from statebed.sinks.sql.postgres import PostgresTransaction
from statebed.sinks.sql.sqlite import SQLiteTransaction
from statebed.storage import LocalStore, MemoryStore
from statebed.testing.faults import Fault, FaultStore, SimulatedCrash

TRANSACTIONS: dict[str, Any] = {"sqlite": SQLiteTransaction, "postgres": PostgresTransaction}
FILLERS = 2_000
KILLS = examples(2)


@dataclass(frozen=True)
class Table:
    """A sink's place, and how a test reads it."""

    kind: str
    place: str
    password: str | None
    read: Callable[[], list[tuple[str, int]]]

    def sink(self) -> Any:
        return make_sink(self.kind, self.place, self.password)

    def rows(self) -> dict[str, int]:
        rows = self.read()
        assert len(dict(rows)) == len(rows)
        return dict(rows)


@pytest.fixture(params=["sqlite", "postgres", "parquet", "debezium", "delta", "iceberg"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    place = str(tmp_path / "results")
    match request.param:
        case "sqlite":
            return Table("sqlite", place, None, lambda: _select(place))
        case "postgres":
            postgres = request.getfixturevalue("postgres")
            query = "select k, n from results"
            return Table("postgres", postgres.dsn, postgres.password, lambda: postgres.run(query))
        case "delta" | "iceberg":
            lake = Lake(request.param, Path(place))
            return Table(request.param, place, None, lambda: [(row[0], row[1]) for row in lake.rows()])
        case "parquet":
            return Table("parquet", place, None, lambda: _folded(place))
        case _:
            return Table("debezium", place, None, lambda: list(debezium_rows(place).items()))


def _select(path: str) -> list[tuple[str, int]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute("select k, n from results").fetchall()
    finally:
        connection.close()


def _folded(path: str) -> list[tuple[str, int]]:
    rows = folded([read_table(path)], publishing.COLUMNS).to_pylist()
    assert all(row["_weight"] == 1 for row in rows)
    return [(row["k"], row["n"]) for row in rows]


def test_p3_a_death_between_the_table_and_the_marker_repeats_nothing(table: Table) -> None:
    disk = MemoryStore()
    for _ in range(3):
        store = FaultStore(disk, lambda o: Fault.CRASH_BEFORE if "/published-" in o.path and o.verb.writes else None)
        run = open_run(store)
        commit(run)
        with pytest.raises(SimulatedCrash):
            Publisher(run, [table.sink()]).open()
    run = open_run(disk)
    publisher = Publisher(run, [table.sink()])
    publisher.open()
    commit(run)
    assert publisher.publish_pending() == 1
    assert counter_of(run) == 4
    assert table.rows() == expected(4)


@pytest.mark.parametrize("kind", TRANSACTIONS)
def test_p2_a_death_between_any_two_statements_leaves_whole_epochs(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, password = str(tmp_path / "results.db"), None
    if kind == "postgres":
        postgres = request.getfixturevalue("postgres")
        place, password = postgres.dsn, postgres.password
    sink = make_sink(kind, place, password)
    read = (lambda: postgres.run("select k, n from results")) if kind == "postgres" else lambda: _select(place)
    run = open_run(MemoryStore())
    publisher = Publisher(run, [sink])
    publisher.open()
    for _ in range(KEYS + 1):
        commit(run)
    publisher.publish_pending()
    # The statements are the same; connections to a server take their time.
    for last in itertools.count(1, 3 if kind == "postgres" else 1):
        commit(run)
        calls = itertools.count(1)
        with monkeypatch.context() as patch:
            for name in ("run", "load"):
                step = getattr(TRANSACTIONS[kind], name)

                def deadly(*values: Any, step: Any = step, calls: Any = calls, last: int = last) -> Any:
                    done = step(*values)
                    if next(calls) == last:
                        raise SimulatedCrash
                    return done

                patch.setattr(TRANSACTIONS[kind], name, deadly)
            before = dict(read())
            try:
                publisher.publish_pending()
            except SimulatedCrash:
                assert dict(read()) == before == expected(counter_of(run) - 1)
                publisher.publish_pending()
            else:
                break  # an epoch has fewer statements
        assert dict(read()) == expected(counter_of(run))
    assert last > 8
    assert dict(read()) == expected(counter_of(run))


def test_p3_a_superseded_run_that_is_past_its_last_look_is_refused_by_the_table(table: Table) -> None:
    disk = MemoryStore()
    old = open_run(disk)
    publisher = Publisher(old, [table.sink()])
    publisher.open()
    for _ in range(2):
        commit(old)
    publisher.publish_pending()
    commit(old)
    (record, _), *_ = old.pending()
    new = open_run(disk, RunOptions(origin=Origin(epoch=record.epoch - 1)))
    Publisher(new, [table.sink()]).open()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(old), "check_live", lambda _: None)  # it looked, then slept
        with pytest.raises(FencedError):
            publisher.publish_pending()
    assert table.rows() == expected(2)
    commit(new)
    Publisher(new, [table.sink()]).publish_pending()
    assert table.rows() == expected(3)


def test_a_fork_takes_published_epochs_back_or_says_that_the_table_cannot(table: Table) -> None:
    disk = MemoryStore()
    run = open_run(disk)
    publisher = Publisher(run, [table.sink()])
    publisher.open()
    for _ in range(4):
        commit(run)
    publisher.publish_pending()
    options = RunOptions(origin=Origin(epoch=run.head.epoch - 2), rollback=RollbackPolicy.ALLOW)
    forked = open_run(disk, options)
    if table.kind in TRANSACTIONS:
        with pytest.raises(RollbackError, match="cannot be rolled back"):
            Publisher(forked, [table.sink()]).open()
        assert table.rows() == expected(4)
        return
    publisher = Publisher(forked, [table.sink()])
    publisher.open()
    assert table.rows() == expected(2)
    commit(forked)
    publisher.publish_pending()
    assert table.rows() == expected(3)


@pytest.mark.parametrize(
    "table", ["sqlite", "postgres", "delta", pytest.param("iceberg", marks=pytest.mark.long)], indirect=True
)
def test_p1_p2_a_process_that_is_killed_at_any_moment_neither_loses_nor_repeats_an_epoch(
    table: Table, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    chance = random.Random(11)
    command = [sys.executable, "-m", "unit.sinks.publishing", str(state), table.kind, table.place]
    command += [table.password or "", str(FILLERS)]
    for _ in range(KILLS):
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as child:
            assert child.stdout is not None
            assert child.stdout.readline().strip().isdigit()
            time.sleep(chance.uniform(0, 0.5))
            child.send_signal(signal.SIGKILL)
            child.wait(30)
    run = open_run(LocalStore(state))
    publisher = Publisher(run, [table.sink()])
    publisher.open()
    assert counter_of(run) >= KILLS
    assert table.rows() == expected(counter_of(run), FILLERS)
