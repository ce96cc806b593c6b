"""Tables of state that a shell can select from.

They are those of all jobs of the attached locations, as `job.operator.table`, and the positions of their sources and
sinks, as `job.positions.sources` and `job.positions.sinks`.
"""

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pyarrow as pa

from statebed.cli import sql
from statebed.cli.pinned_epoch import ATTEMPTS, PinnedEpoch, open_epoch
from statebed.errors import EpochNotRetainedError, InputError, MissingFileError, StatebedError
from statebed.inspect import StateTable
from statebed.inspect.jobs import check_location, job_names
from statebed.sql.source_text import SqlSpan, SqlText
from statebed.storage import get_storage_provider

_FRESH_SECONDS = 3.0
_DUCKDB_PLACE = re.compile(r"\n+LINE (?P<line>\d+): (?P<text>.*)\n(?P<blank> *)\^+.*", re.DOTALL)

_QUOTED_NAME = re.compile(r'"(\w+)"')


@dataclass(frozen=True)
class StateName:
    """A state table, and where it is."""

    location: str
    job: str
    operator: str
    table: str

    @property
    def parts(self) -> tuple[str, str, str]:
        return self.job, self.operator, self.table

    def __str__(self) -> str:
        return ".".join(self.parts)


class StateCatalogue:
    """Attached state locations and the tables of their jobs."""

    def __init__(self, locations: Sequence[str] = ()) -> None:
        self.locations: list[str] = []
        """URLs of the attached locations: relative paths and others are different names of one location."""
        for location in locations:
            self.add(location)
        self._names: tuple[StateName, ...] = ()
        self._read_at = -_FRESH_SECONDS
        self._columns: dict[StateName, tuple[str, ...]] = {}
        self._results = False
        self._epoch: int | None = None

    def add(self, location: str) -> None:
        """Add a location, unless it is attached under this or another name."""
        url = get_storage_provider(location).url
        if url not in self.locations:
            self.locations.append(url)

    def attach(self, location: str) -> list[str]:
        """Add a location and return its jobs; raise InputError if it is none."""
        store = get_storage_provider(location)
        jobs = job_names(store)
        if not jobs:
            check_location(store)
        self.add(location)
        self.forget()
        return jobs

    def detach(self, location: str) -> None:
        """Remove a location."""
        url = get_storage_provider(location).url
        if url not in self.locations:
            raise InputError(
                f"the location {location!r} is not attached",
                fix=f"the attached locations are {', '.join(self.locations)}"
                if self.locations
                else "none is attached yet",
            )
        self.locations.remove(url)
        self.forget()

    def show_results(self, on: bool) -> None:
        """Show finished results of aggregates and top-n where a table has them, or the stored columns."""
        self._results = on
        self._columns.clear()

    def show_epoch(self, epoch: int | None) -> None:
        """Read tables as of an epoch that is still retained, or of the newest one."""
        self._epoch = epoch
        self._columns.clear()

    def forget(self) -> None:
        """Read the names again when they are next needed."""
        self._read_at = -_FRESH_SECONDS

    @property
    def names(self) -> tuple[StateName, ...]:
        """State tables of all jobs; a location or job that cannot be read has none."""
        if time.monotonic() - self._read_at >= _FRESH_SECONDS:
            self._names = tuple(name for location in self.locations for name in _names_of(location))
            self._read_at = time.monotonic()
        return self._names

    def resolve(self, parts: Sequence[str]) -> StateName | None:
        """Return the table of a name: `job.operator.table`, or `operator.table` if only one job has it."""
        matches = self.matching(parts)
        return matches[0] if len(parts) > 1 and len(matches) == 1 else None

    def matching(self, parts: Sequence[str]) -> list[StateName]:
        """Return all tables with a name."""
        lowered = tuple(part.lower() for part in parts)
        return [name for name in self.names if tuple(part.lower() for part in name.parts)[-len(lowered) :] == lowered]

    def schema_of(self, name: StateName) -> pa.Schema:
        return self._opened(name).schema

    def columns_of(self, name: StateName) -> tuple[str, ...]:
        """Return the columns of a table for completion; none if it cannot be read."""
        if name not in self._columns:
            with suppress(StatebedError):
                self._columns[name] = tuple(self.schema_of(name).names)
        return self._columns.get(name, ())

    @contextmanager
    def answered(
        self, source: SqlText, names: Sequence[tuple[tuple[str, ...], StateName]], interrupts: sql.Interrupts
    ) -> Iterator[pa.RecordBatchReader]:
        """Run a query over state tables in DuckDB; `names` has each table as it is written in the query."""
        tables = {written: self._opened(name) for written, name in names}
        try:
            with sql.answered_over(source.text.rstrip().rstrip(";"), tables, interrupts=interrupts) as answer:
                yield answer
        except InputError as error:
            if isinstance(error.__cause__, StatebedError) or not error.where.startswith("SQL: "):
                raise
            raise _placed(source, error) from error

    def _opened(self, name: StateName) -> StateTable | pa.Table:
        """Open a table at the chosen or newest epoch; again with a newer one if clean-up removes it meanwhile."""
        for _ in range(ATTEMPTS - 1 if self._epoch is None else 0):
            with suppress(EpochNotRetainedError, MissingFileError):
                return self._epoch_of(name).read(name.operator, name.table, results=self._results)
        return self._epoch_of(name).read(name.operator, name.table, results=self._results)

    def _epoch_of(self, name: StateName) -> PinnedEpoch:
        return open_epoch(name.location, name.job, epoch=self._epoch, savepoint=None)


def _names_of(location: str) -> Iterator[StateName]:
    with suppress(StatebedError):
        for job in job_names(get_storage_provider(location)):
            with suppress(StatebedError):
                for operator, table in open_epoch(location, job, epoch=None, savepoint=None).selectable:
                    yield StateName(location, job, operator, table)


def _placed(source: SqlText, error: InputError) -> InputError:
    """Return an error of DuckDB's at its place in the text."""
    match = _DUCKDB_PLACE.search(error.what)
    if match is None:
        name = _QUOTED_NAME.search(error.what)
        place = re.search(rf"\b{re.escape(name[1])}\b", source.text) if name else None
        span = SqlSpan(*place.span()) if place else SqlSpan(0, len(source.text))
        return source.mistake(error.what, span, fix=error.fix)
    what = error.what[: match.start()].strip()
    shown = match["text"].removeprefix("...").removesuffix("...")
    cut = len(match["text"]) - len(match["text"].removeprefix("..."))
    column = len(match["blank"]) - len(f"LINE {match['line']}: ") - cut
    lines = source.text.split("\n")
    line = min(int(match["line"]), len(lines))
    start = max(lines[line - 1].find(shown), 0) + max(column, 0)
    offset = source.offset_of(line, start)
    word = re.compile(r"[\w.]+|\S|$").match(source.text, offset)
    end = max(word.end() if word else offset, offset + 1)
    return source.mistake(what, SqlSpan(offset, end), fix=error.fix)
