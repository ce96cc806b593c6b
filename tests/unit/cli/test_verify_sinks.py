"""`statebed verify` compares what a job's sinks hold with its log; a sink that it cannot reach is not intact."""

import json
import shutil
import sqlite3
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from command_line import Call, Outcome
from lake_tables import ICEBERG_TABLE
from unit.sinks.publishing import JOB, SINK, commit, make_sink, open_run

from statebed.checkpoint import Publication, Publisher, RunOptions, SinkStart
from statebed.checkpoint import run as run_module
from statebed.inspect import verification
from statebed.inspect.jobs import open_log
from statebed.protocol import Guarantee, SinkIdentity, SinkPosition
from statebed.protocol.retention import Retention
from statebed.sinks import recorded_targets
from statebed.sinks.lake import folder_catalog
from statebed.sinks.verification import verify_sinks
from statebed.storage import LocalStore

KINDS = ["sqlite", "postgres", "delta", "iceberg"]
IN_FILES = ["sqlite", "delta", "iceberg"]


@dataclass
class World:
    """A job with one sink, and what somebody does to its target."""

    kind: str
    folder: Path
    postgres: Any
    statebed: Call

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def target(self) -> Path:
        return self.folder / "target"

    @property
    def place(self) -> str:
        return self.postgres.dsn if self.postgres else str(self.target)

    def publisher(self, retention: Retention | None = None, **choices: Any) -> tuple[Any, Publisher]:
        run = open_run(LocalStore(self.state), RunOptions(retention=retention) if retention else None)
        sink = make_sink(self.kind, self.place, self.postgres.password if self.postgres else None)
        publisher = Publisher(run, [sink], **choices)
        publisher.open()
        return run, publisher

    def publish(self, epochs: int) -> int:
        """Publish epochs with a new run, and return the newest."""
        run, publisher = self.publisher()
        for _ in range(epochs):
            commit(run)
            publisher.publish_pending()
        return int(run.head.epoch)

    def verify(self, *options: str) -> Outcome:
        return self.statebed("verify", self.state, JOB, *options)

    def sink(self) -> Any:
        [sink] = json.loads(self.verify("--json").out)["sinks"]
        return sink

    def remove(self) -> None:
        if self.postgres:
            self.postgres.run("drop table results")
            self.postgres.run("drop table _statebed_commits")
        elif self.target.is_dir():
            shutil.rmtree(self.target)
        else:
            self.target.unlink()

    def back_up(self) -> None:
        if self.postgres:
            for name in ("results", "_statebed_commits"):
                self.postgres.run(f"create table old_{name} as table {name}")
        else:
            copy(self.target, self.folder / "backup")

    def restore(self) -> None:
        if self.postgres:
            for name in ("results", "_statebed_commits"):
                self.postgres.run(f"delete from {name}")
                self.postgres.run(f"insert into {name} select * from old_{name}")
        else:
            self.remove()
            copy(self.folder / "backup", self.target)


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy(source, target)


@pytest.fixture
def make_world(
    request: pytest.FixtureRequest, tmp_path: Path, statebed: Call, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], World]:
    def made(kind: str) -> World:
        if kind != "postgres":
            return World(kind, tmp_path, None, statebed)
        postgres = request.getfixturevalue("postgres")
        monkeypatch.setenv("PGUSER", postgres.server.user)
        monkeypatch.setenv("PGPASSWORD", postgres.password)
        monkeypatch.setenv("PGOPTIONS", f"-c search_path={postgres.name}")
        return World(kind, tmp_path, postgres, statebed)

    return made


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, make_world: Callable[[str], World]) -> World:
    return make_world(request.param)


def test_p7_verify_says_what_an_intact_sink_holds(world: World) -> None:
    epoch = world.publish(3)
    whole = world.verify()
    assert (whole.code, whole.out.endswith("everything is intact\n")) == (0, True), whole.out
    assert f"up to epoch {epoch}" in whole.out
    sink = world.sink()
    assert (sink["sink_id"], sink["epoch"], sink["findings"], sink["not_checked"]) == (SINK, epoch, [], "")
    assert (sink["files"] > 0) == (world.kind in {"delta", "iceberg"})
    for option in (("--no-sinks",), ("--epoch", str(epoch))):
        assert "sink out" not in world.verify(*option).out


def test_p7_verify_misses_a_target_that_is_gone_and_creates_nothing(world: World) -> None:
    epoch = world.publish(3)
    world.remove()
    told = world.verify()
    assert told.code == 1
    assert f"holds nothing at its target, though epochs up to {epoch} were published to it" in told.out
    assert "everything is intact" not in told.out
    assert not world.target.exists()
    assert world.verify("--no-sinks").code == 0


def test_p7_verify_misses_epochs_of_a_target_from_an_older_backup(world: World) -> None:
    held = world.publish(2)
    world.back_up()
    newest = world.publish(2)
    assert world.verify().code == 0
    world.restore()
    told = world.verify()
    assert told.code == 1
    assert f"is at epoch {held}, but the job published epoch {newest} to it" in told.out


def test_p7_verify_misses_epochs_that_are_no_longer_retained(make_world: Callable[[str], World]) -> None:
    world = make_world("sqlite")
    held = world.publish(2)
    world.back_up()
    run, publisher = world.publisher(Retention(epochs=1))
    for _ in range(5):
        commit(run)
        publisher.publish_pending()
    run.commit(run.carry_over())
    run.clean_up()
    world.restore()
    told = world.verify()
    assert told.code == 1
    assert f"sink out is at epoch {held}, and epochs {held + 1} to" in told.out
    assert "are no longer retained" in told.out


def test_p7_verify_names_a_target_that_is_ahead_of_the_job(world: World) -> None:
    world.publish(2)
    shutil.copytree(world.state, world.folder / "old state")
    epoch = world.publish(2)
    shutil.rmtree(world.state)
    shutil.copytree(world.folder / "old state", world.state)
    told = world.verify()
    assert told.code == 1
    assert f"holds epoch {epoch} of run" in told.out
    assert "which this job did not publish to it" in told.out


def test_p7_verify_does_not_miss_an_epoch_that_is_not_published_yet(world: World) -> None:
    run, publisher = world.publisher()
    assert world.verify().code == 0
    for is_published in (True, False, False):
        commit(run)
        if is_published:
            publisher.publish_pending()
    told = world.verify()
    assert (told.code, told.out.endswith("everything is intact\n")) == (0, True), told.out


def test_p7_verify_accepts_what_was_given_up_at_a_start(world: World) -> None:
    world.publish(2)
    world.remove()
    assert world.verify().code == 1
    run, _ = world.publisher(starts={SINK: SinkStart.START_EMPTY})
    run.commit(run.carry_over())
    assert world.verify().code == 0


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_p7_verify_names_a_table_that_was_dropped_or_belongs_to_another_sink(
    make_world: Callable[[str], World], kind: str
) -> None:
    world = make_world(kind)
    world.publish(2)

    def change(statement: str) -> None:
        if world.postgres:
            world.postgres.run(statement)
            return
        connection = sqlite3.connect(world.target)
        with connection:
            connection.execute(statement)
        connection.close()

    change("update _statebed_commits set owner = 'other/out'")
    told = world.verify()
    assert (told.code, "the table belongs to other/out, not to counts/out" in told.out) == (1, True), told.out
    change("update _statebed_commits set owner = 'counts/out'")
    change("alter table results rename to elsewhere")
    told = world.verify()
    assert (told.code, "the table results does not exist" in told.out) == (1, True), told.out
    change("alter table elsewhere rename to results")
    assert world.verify().code == 0
    change("delete from _statebed_commits")
    told = world.verify()
    assert (told.code, "_statebed_commits has no row for the table results" in told.out) == (1, True), told.out


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_p7_verify_names_files_that_a_lakehouse_table_lists_and_lacks(
    make_world: Callable[[str], World], kind: str
) -> None:
    world = make_world(kind)
    world.publish(2)
    if kind == "delta":
        import deltalake  # noqa: PLC0415 - slow to import

        files = [Path(uri.removeprefix("file://")) for uri in deltalake.DeltaTable(str(world.target)).file_uris()]
    else:
        table = folder_catalog(str(world.target)).load().load_table(ICEBERG_TABLE)
        files = [Path(task.file.file_path.removeprefix("file://")) for task in table.scan().plan_files()]
    size = files[0].stat().st_size
    with files[0].open("ab") as file:
        file.write(b"x")
    told = world.verify()
    assert told.code == 1
    assert files[0].name in told.out
    assert f"it has {size + 1} bytes instead of {size}" in told.out
    files[0].unlink()
    told = world.verify()
    assert (told.code, "it is listed but missing" in told.out) == (1, True), told.out


@pytest.mark.parametrize("kind", IN_FILES)
def test_p7_verify_names_a_target_whose_own_log_is_damaged(make_world: Callable[[str], World], kind: str) -> None:
    world = make_world(kind)
    world.publish(2)
    if kind == "sqlite":
        world.target.write_bytes(b"not a database" * 1000)
    elif kind == "delta":
        max((world.target / "_delta_log").glob("*.json")).write_text("{broken")
    else:
        for manifest in world.target.rglob("*.avro"):
            manifest.unlink()
    told = world.verify()
    assert (told.code, "1 problem" in told.out) == (1, True), told.out


def test_verify_reads_a_database_that_another_process_writes(make_world: Callable[[str], World]) -> None:
    world = make_world("sqlite")
    world.publish(2)
    writer = sqlite3.connect(world.target, isolation_level=None)
    writer.execute("begin immediate")
    writer.execute("delete from results")
    told = world.verify()
    writer.execute("rollback")
    writer.close()
    assert (told.code, told.out.endswith("everything is intact\n")) == (0, True), told.out


def test_verify_takes_the_connection_string_of_a_postgres_sink(
    make_world: Callable[[str], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world("postgres")
    world.publish(2)
    for name in ("PGUSER", "PGOPTIONS"):
        monkeypatch.delenv(name)
    assert world.verify("--dsn", f"out={world.postgres.dsn}").code == 0
    assert world.verify("--dsn", "no sink").code == 2
    unchecked = world.verify("--dsn", "out=host=/nonexistent dbname=results")
    assert unchecked.code == 0
    assert "not checked: PostgreSQL is unreachable" in unchecked.out
    assert unchecked.out.endswith("everything that was checked is intact; not checked: out\n")


class StubSink:
    """A sink of which only the record is of interest."""

    sink_id = SINK
    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(self, kind: str, target: str) -> None:
        self.identity = SinkIdentity(kind, target, keeps_position=True)
        self.position = SinkPosition(0, 0)

    def open(self, run: int) -> SinkPosition | None:
        before, self.position = self.position, SinkPosition(run, self.position.epoch)
        return before

    def roll_back(self, run: int, epoch: int) -> None:
        raise NotImplementedError

    def publish(self, publication: Publication) -> None:
        self.position = SinkPosition(publication.run, publication.epoch)


@pytest.mark.parametrize(
    ("identity", "reason"),
    [
        (("kafka", "topic minutes at 127.0.0.1:1"), "Kafka is unreachable"),
        (("postgresql", "table minutes in postgresql /nonexistent/5432/results"), "PostgreSQL is unreachable"),
        (("iceberg", "table rides.minutes in http://127.0.0.1:1/catalog"), "pyiceberg reported"),
        (("iceberg", "table rides.minutes in catalog unknown"), "pyiceberg reported"),
        (("", "https://api.example/rows"), "only the program can read the position of sinks that a program defines"),
    ],
)
def test_verify_says_which_sinks_it_could_not_check(
    statebed: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, identity: tuple[str, str], reason: str
) -> None:
    monkeypatch.setattr(recorded_targets, "_TIMEOUT_SECONDS", 1.0)
    run = open_run(LocalStore(tmp_path))
    publisher = Publisher(run, [StubSink(*identity)])
    publisher.open()
    commit(run)
    publisher.publish_pending()
    told = statebed("verify", tmp_path, JOB)
    assert (
        f"not checked: {reason}" in told.out
        or f"not checked: only the program can read the position of {reason}" in (told.out)
    )
    assert told.out.endswith("everything that was checked is intact; not checked: out\n")
    assert told.code == 0
    [sink] = json.loads(statebed("verify", tmp_path, JOB, "--json").out)["sinks"]
    assert reason in sink["not_checked"]


def test_verify_without_the_client_of_a_sink_does_not_call_it_intact(
    make_world: Callable[[str], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world("delta")
    world.publish(1)
    monkeypatch.setitem(sys.modules, "deltalake", None)
    told = world.verify()
    assert "not checked: the sink 'delta' needs deltalake: pip install 'statebed[delta]'" in told.out
    assert (told.code, "everything is intact" in told.out) == (0, False)


def test_verify_does_not_judge_a_database_that_it_cannot_read(
    make_world: Callable[[str], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_targets, "_TIMEOUT_SECONDS", 0.2)
    world = make_world("sqlite")
    world.publish(1)
    other = sqlite3.connect(world.target, isolation_level=None)
    other.execute("begin exclusive")
    told = world.verify()
    other.close()
    assert (told.code, "not checked: SQLite reported an error: database is locked" in told.out) == (0, True), told.out


def test_p7_verify_misses_a_database_that_was_dropped(make_world: Callable[[str], World]) -> None:
    world = make_world("postgres")
    epoch = world.publish(2)
    dsn = world.postgres.server.dsn.replace("dbname=postgres", "dbname=dropped")
    told = world.verify("--dsn", f"out={dsn}")
    assert told.code == 1
    assert "/dropped does not exist on its server: sink out holds nothing at its target" in told.out
    assert f"though epochs up to {epoch} were published to it" in told.out


def test_verify_with_a_damaged_log_compares_no_positions(make_world: Callable[[str], World]) -> None:
    world = make_world("sqlite")
    epoch = world.publish(2)
    (world.state / JOB / "checkpoints" / f"{epoch:012d}" / "checkpoint.metadata").write_bytes(b"broken")
    told = world.verify()
    assert told.code == 1
    assert "not checked: a start would refuse the log" in told.out


def test_verify_beside_a_job_that_publishes_reports_nothing(
    make_world: Callable[[str], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the position and the look at the log, the job publishes two epochs."""
    world = make_world("sqlite")
    run, publisher = world.publisher()
    commit(run)
    publisher.publish_pending()
    log = open_log(str(world.state), JOB)
    [table] = verification.verify_log(log).other_targets
    previews: list[Any] = []
    preview = run_module.Run.preview

    def later(*arguments: Any) -> Any:
        if not previews:
            for _ in range(2):
                commit(run)
                publisher.publish_pending()
        previews.append(preview(*arguments))
        return previews[-1]

    monkeypatch.setattr(run_module.Run, "preview", later)
    [sink] = verify_sinks(log, [table])
    assert (sink.findings, sink.not_checked, sink.epoch) == ((), "", run.head.epoch)
    assert len(previews) == 2
