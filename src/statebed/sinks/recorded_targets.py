"""Targets of sinks as records name them, opened without the program that wrote them, and only to read.

A record has the kind of a sink and its target in words, without secrets. Users and passwords thus come from the
environment, from the files of a client library, or from a connection string that is given. A target that cannot be
reached is never taken for a missing one: `UncheckedError` tells why it was not looked at.
"""

import contextlib
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from statebed.errors import MissingDependencyError, SinkError, SinkUnavailableError, StatebedError
from statebed.inspect.verification import SinkTable
from statebed.protocol import SinkPosition
from statebed.sinks.kafka import KafkaCluster
from statebed.sinks.kafka.topic import Topic
from statebed.sinks.lake import DeltaLakeTable, IcebergCatalog, IcebergLakeTable, LakeTable, TableLayout
from statebed.sinks.sql import Database, Postgres, SQLite, TableName
from statebed.sinks.sql.commits_table import COMMITS, CommitsTable

_TIMEOUT_SECONDS = 10.0
_READS_AT_ONCE = 16
_SERVER = re.compile(r"(?P<host>.+)/(?P<port>\d+)/(?P<dbname>[^/]+)")
_DAMAGED = ("SQLITE_NOTADB", "SQLITE_CORRUPT")


class UncheckedError(Exception):
    """A target could not be looked at, so nothing is known about it."""


@dataclass(frozen=True)
class HeldEpoch:
    """Position of a sink in its target."""

    position: SinkPosition | None
    absence: str = ""
    """Reason for a missing position, or what the target lacks; empty if unknown."""


@dataclass(frozen=True)
class FileProblem:
    """A file that the target lists, and that is missing or has another size."""

    path: str
    problem: str


class RecordedTarget(Protocol):
    """A target that is read. Each method raises UncheckedError if it cannot be reached, and a StatebedError for damage
    or for the table of another sink.
    """

    def held(self) -> HeldEpoch:
        """Return the position."""

    def check_files(self) -> tuple[int, list[FileProblem]]:
        """Return the number of files that the target lists, and those that are missing or have another size."""


class SqlTarget:
    """A table in a SQL database."""

    def __init__(self, database: Database, name: TableName, owner: str) -> None:
        self._database = database
        self._name = name
        self._owner = owner
        where = f"{database.product} table {name} in {database.place}"
        self._commits = CommitsTable(database, name, where=where)

    def held(self) -> HeldEpoch:
        with _sql_errors():
            if not self._database.exists:
                return HeldEpoch(None, f"{self._database.place} does not exist")
            with self._database.reading() as transaction:
                if transaction.columns(self._commits.name) is None:
                    return HeldEpoch(None, f"the database has no table {COMMITS}")
                position = self._commits.position(transaction, self._owner, lock=False)
                if position is None:
                    return HeldEpoch(None, f"{COMMITS} has no row for the table {self._name}")
                if transaction.columns(self._name) is None:
                    return HeldEpoch(SinkPosition(position.run, epoch=0), f"the table {self._name} does not exist")
                return HeldEpoch(position)

    def check_files(self) -> tuple[int, list[FileProblem]]:
        return 0, []


class PostgresTarget:
    """A table in a PostgreSQL database. A record may not tell which part of its place is the host and which the
    database: then the first reading of it that connects is the right one.
    """

    def __init__(self, dsns: Sequence[str], name: TableName, owner: str) -> None:
        self._databases = [Postgres(dsn, password=None, timeout_seconds=_TIMEOUT_SECONDS) for dsn in dsns]
        self._targets = [SqlTarget(database, name, owner) for database in self._databases]

    def held(self) -> HeldEpoch:
        first: UncheckedError | None = None
        for target in self._targets:
            try:
                return target.held()
            except UncheckedError as error:
                first = first or error
        if len(self._databases) == 1 and self._databases[0].is_missing():
            return HeldEpoch(None, f"{self._databases[0].place} does not exist on its server")
        raise first or UncheckedError("the record has no place for it")

    def check_files(self) -> tuple[int, list[FileProblem]]:
        return 0, []


class LakeTarget:
    """A Delta or Iceberg table."""

    def __init__(self, table: LakeTable, owner: str, *, is_local: bool) -> None:
        self._table = table
        self._owner = owner
        self._is_local = is_local

    def held(self) -> HeldEpoch:
        with self._errors():
            version = self._table.current(self._owner)
            if version is None:
                return HeldEpoch(None, "the table does not exist")
            version.check_owner(self._owner, where=self._table.where)
            return HeldEpoch(version.position, "" if version.position else "no commit of the sink is in its log")

    def check_files(self) -> tuple[int, list[FileProblem]]:
        """Compare the files of the newest version. Files that a later version no longer lists were removed since."""
        with self._errors():
            files, problems = self._checked()
            if problems:
                files, again = self._checked()
                problems = [problem for problem in problems if problem in again]
            return files, problems

    def _checked(self) -> tuple[int, list[FileProblem]]:
        version = self._table.current(self._owner)
        if version is None:
            return 0, []
        sizes = self._table.listed_sizes(version)

        def problem(path: str) -> FileProblem | None:
            stored = self._table.stored_size(version, path)
            if stored == sizes[path]:
                return None
            state = "it is listed but missing" if stored is None else f"it has {stored} bytes instead of {sizes[path]}"
            return FileProblem(path, state)

        with ThreadPoolExecutor(_READS_AT_ONCE, thread_name_prefix="statebed-verify") as pool:
            return len(sizes), list(filter(None, pool.map(problem, sorted(sizes))))

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Tell a log that is damaged from one that cannot be reached."""
        try:
            yield
        except SinkError as error:
            cause = error.__cause__
            if cause is None or isinstance(cause, FileNotFoundError) or type(cause).__name__ == "DeltaProtocolError":
                raise
            if not self._is_local or isinstance(cause, OSError):
                raise UncheckedError(error.what) from error
            raise


class KafkaTarget:
    """A topic."""

    def __init__(self, topic: Topic, owner: str) -> None:
        self._topic = topic
        self._owner = owner

    def held(self) -> HeldEpoch:
        try:
            facts = self._topic.facts()
            if facts is None:
                return HeldEpoch(None, "the topic does not exist")
            position = self._topic.position_of(self._owner, facts)
        except SinkUnavailableError as error:
            raise UncheckedError(error.what) from error
        return HeldEpoch(position, "" if position else f"the group {self._topic.group} has no offset")

    def check_files(self) -> tuple[int, list[FileProblem]]:
        return 0, []


def open_target(table: SinkTable, owner: str, *, dsn: str | None = None) -> RecordedTarget:
    """Open the target of a sink; raise UncheckedError if the record does not tell enough about it, or if a library is
    missing. `dsn` is the connection string of a PostgreSQL sink.
    """
    opened = _KINDS.get(table.kind)
    if opened is None:
        kind = f"sinks of kind {table.kind!r}" if table.kind else "sinks that a program defines"
        raise UncheckedError(f"only the program can read the position of {kind}")
    try:
        return opened(table.target, owner, dsn)
    except MissingDependencyError as error:
        raise UncheckedError(f"{error.what}: {error.fix}") from error
    except StatebedError as error:
        raise UncheckedError(error.what) from error


def _sqlite(target: str, owner: str, _: str | None) -> RecordedTarget:
    name, path = _parts(target, "table ", " in ")
    return SqlTarget(SQLite(path, timeout_seconds=_TIMEOUT_SECONDS), TableName(name), owner)


def _postgres(target: str, owner: str, dsn: str | None) -> RecordedTarget:
    full_name, place = _parts(target, "table ", " in postgresql ")
    schema, _, table = full_name.rpartition(".")
    dsns = [dsn] if dsn is not None else _connection_strings(place)
    return PostgresTarget(dsns, TableName(table, schema or None), owner)


def _delta(target: str, owner: str, _: str | None) -> RecordedTarget:
    return LakeTarget(DeltaLakeTable(target, layout=TableLayout()), owner, is_local="://" not in target)


def _iceberg(target: str, owner: str, _: str | None) -> RecordedTarget:
    identifier, place = _parts(target, "table ", " in ")
    catalog = _catalog(place)
    table = IcebergLakeTable(identifier, catalog=catalog, layout=TableLayout())
    if catalog.file is None:
        return LakeTarget(table, owner, is_local=False)
    return _CatalogFile(LakeTarget(table, owner, is_local=True), Path(catalog.file))


class _CatalogFile:
    """A table in a catalog that is a local file, which pyiceberg would create."""

    def __init__(self, table: LakeTarget, file: Path) -> None:
        self._table = table
        self._file = file

    def held(self) -> HeldEpoch:
        return self._table.held() if self._file.exists() else HeldEpoch(None, f"{self._file} does not exist")

    def check_files(self) -> tuple[int, list[FileProblem]]:
        return self._table.check_files() if self._file.exists() else (0, [])


def _kafka(target: str, owner: str, _: str | None) -> RecordedTarget:
    topic, servers = _parts(target, "topic ", " at ")
    return KafkaTarget(Topic(KafkaCluster(servers, timeout_seconds=_TIMEOUT_SECONDS), topic), owner)


_KINDS: Mapping[str, Callable[[str, str, str | None], RecordedTarget]] = {
    "sqlite": _sqlite,
    "postgresql": _postgres,
    "delta": _delta,
    "iceberg": _iceberg,
    "kafka": _kafka,
}


def _parts(target: str, prefix: str, between: str) -> tuple[str, str]:
    """Split a target into the name of the table or topic, and its place."""
    name, separator, place = target.removeprefix(prefix).partition(between)
    if not separator:
        raise UncheckedError(f"the record has no place for it: {target!r}")
    return name, place


def _connection_strings(place: str) -> list[str]:
    """Return the connection strings that a place of a PostgreSQL database, as host/port/dbname, may stand for. The
    parts that were not given are missing in it.

    >>> _connection_strings("db.example/5432/results")
    ["host='db.example' port='5432' dbname='results'"]
    >>> _connection_strings("results")
    ["dbname='results'", "host='results'"]
    >>> _connection_strings("/run/postgresql/results")
    ["host='/run/postgresql' dbname='results'", "host='/run/postgresql/results'"]
    >>> _connection_strings("of the environment")
    ['']
    """
    if place == "of the environment":
        return [""]
    if match := _SERVER.fullmatch(place):
        return [_dsn(**match.groupdict())]
    rest, _, last = place.rpartition("/")
    if last.isdecimal() and rest:
        return [_dsn(host=rest, port=last)]
    if rest.isdecimal():
        return [_dsn(port=rest, dbname=last)]
    return [_dsn(host=rest, dbname=last), _dsn(host=place)] if rest else [_dsn(dbname=last), _dsn(host=last)]


def _dsn(**parts: str) -> str:
    escaped = {name: part.replace("\\", "\\\\").replace("'", "\\'") for name, part in parts.items()}
    return " ".join(f"{name}='{part}'" for name, part in escaped.items())


def _catalog(place: str) -> IcebergCatalog:
    """Return the catalog at a place. pyiceberg adds the properties of its configuration, such as credentials."""
    if place.startswith("catalog "):
        return IcebergCatalog(place.removeprefix("catalog "))
    scheme, separator, _ = place.partition("://")
    if not separator:
        return IcebergCatalog(properties={"type": "sql", "uri": f"sqlite:///{place}", "init_catalog_tables": "false"})
    kind = {"http": "rest", "https": "rest", "thrift": "hive"}.get(scheme)
    sql: dict[str, str] = {"type": "sql", "init_catalog_tables": "false"}
    return IcebergCatalog(properties={"uri": place, **({"type": kind} if kind else sql)})


@contextlib.contextmanager
def _sql_errors() -> Iterator[None]:
    """Tell a database that is damaged from one that cannot be reached or read."""
    try:
        yield
    except SinkUnavailableError as error:
        raise UncheckedError(error.what) from error
    except SinkError as error:
        cause: Any = error.__cause__
        damaged = isinstance(cause, sqlite3.Error) and str(getattr(cause, "sqlite_errorname", "")).startswith(_DAMAGED)
        if cause is None or damaged:
            raise
        raise UncheckedError(error.what) from error
