"""State as a table: what an operator knows at one epoch, read where it lies.

    trips = read_state("s3://bucket/state", job="rides", operator="per_minute")
    trips.keys("d7").to_arrow()
    trips.between("2024-05-31 12:00", "2024-05-31 13:00").select("driver", "trips").to_pandas()

A `StateTable` is a question, not an answer: `select`, `keys`, `between` and `filter` give a narrower one, and nothing
of the data is read before an answer is asked for. Its epoch is fixed when it is made, so a job may go on meanwhile.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from statebed.errors import InputError
from statebed.format.schema import TIME
from statebed.inspect.tables.finished_rows import Finished
from statebed.inspect.tables.frames import Answer
from statebed.inspect.tables.pinned import JobLocation, PinnedTable, find_location, find_table
from statebed.inspect.tables.pushdown import by_keys, narrowed
from statebed.inspect.tables.read_plan import PartPlan, owns_all
from statebed.inspect.tables.request import Instant, Key, Request
from statebed.inspect.tables.row_reader import rows_of_part
from statebed.inspect.tables.scan import Scan
from statebed.inspect.tables.slices import Slice, answers_of_part, slices_of
from statebed.inspect.tables.stored_results import finished_results
from statebed.inspect.tables.table_shape import TableShape
from statebed.operators.finished_results import UserAggregates
from statebed.operators.labels import stored_label, written_name


class StateTable(Answer):
    """One table of an operator at one epoch. Immutable; made by `read_state`."""

    def __init__(self, found: PinnedTable, request: Request, finished: Finished | None = None) -> None:
        self._found = found
        self._request = request
        self._finished = finished

    @property
    def url(self) -> str:
        """The state location."""
        return self._found.pinned.location.url

    @property
    def job(self) -> str:
        return self._found.pinned.location.job

    @property
    def operator(self) -> str:
        return self._found.operator

    @property
    def operator_name(self) -> str:
        """Name of the operator for people: the given one, or what the user wrote."""
        found = self._found
        return written_name(found.operator, found.entry.definition)

    @property
    def table(self) -> str:
        return self._found.table

    @property
    def description(self) -> str:
        """What the operator says of the table."""
        return self._found.config.description

    @property
    def kind(self) -> str:
        """'keyed', 'time keyed' or 'global keyed'."""
        return self._request.shape.kind

    @property
    def epoch(self) -> int:
        """The epoch whose state this is; of a run_start or a savepoint the epoch that it stands for."""
        return self._found.pinned.epoch

    @property
    def record(self) -> int:
        """The number of the record that was read: that of the epoch, or of a run_start that has its state."""
        return self._found.pinned.number

    @property
    def savepoint(self) -> str | None:
        """The savepoint that was asked for."""
        return self._found.pinned.savepoint

    @property
    def schema(self) -> pa.Schema:
        """The columns that answers have."""
        return self._request.schema if self._finished is None else self._finished.schema

    @property
    def finished(self) -> bool:
        """Whether rows are finished results; False: they are as the table stores them."""
        return self._finished is not None

    @property
    def key_columns(self) -> list[str]:
        """The columns that make the key, in their order."""
        keys = self._request.shape.keys
        return (
            list(keys)
            if self._finished is None
            else [key for key in keys if key in self._finished.results.columns.names]
        )

    @property
    def time_column(self) -> str | None:
        """The column of the rows' times; None: they have none."""
        if self._finished is not None:
            return self._finished.results.time_column
        return TIME if self._request.shape.timed else None

    # ---- narrower questions --------------------------------------------------------------------------------------

    def select(self, *columns: str) -> "StateTable":
        """Only these columns, in this order; `_key_hash` and `_seq` can be asked for, too, unless rows are finished."""
        if self._finished is not None:
            return self._with(self._request, self._finished.select(columns))
        return self._with(self._request.select(columns))

    def keys(self, *keys: Key) -> "StateTable":
        """Only rows of these keys; reads the row groups alone that may hold them.

        A key is a value, for several key columns a tuple of values or a dict by column; a text may stand for a value of
        another type. All keys of a list are `keys(*some)`.
        """
        return self._with(self._request.of_keys(keys), self._finished)

    def of_equal(self, values: Mapping[str, Sequence[Any]]) -> "StateTable | None":
        """Only rows that have one of these values in each key column; None where they say nothing of whole keys."""
        found = by_keys(self._request, values)
        return None if found is None else self._with(found, self._finished)

    def between(self, start: Instant | None = None, end: Instant | None = None) -> "StateTable":
        """Only rows with start <= time < end; None: from the beginning, to the end.

        The time of a finished result is the start of its window.
        """
        if self._finished is not None:
            finished, request = self._finished.between(start, end, self._request)
            return self._with(request, finished)
        return self._with(self._request.between(start, end))

    def filter(self, condition: str | pc.Expression) -> "StateTable":
        """Only rows for which a condition holds: SQL text ("trips > 3 and driver like 'd%'"), or one of pyarrow.

        What a text says of keys and times narrows what is read, as `keys` and `between` do.
        """
        finished, request = self._finished, self._request
        if finished is not None:
            finished = finished.matching(condition)
        else:
            request = request.where(condition)
        return self._with(narrowed(request, condition) if isinstance(condition, str) else request, finished)

    # ---- answers -------------------------------------------------------------------------------------------------

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, piece by piece; about one row group of each open file is held."""
        for plan in self._plans(self._request):
            for rows in answers_of_part(plan, self._finished):
                yield from rows.combine_chunks().to_batches()

    def count(self) -> int:
        """How many rows there are; reads only what decides it."""
        request = self._request
        if self._finished is not None:
            return sum(batch.num_rows for batch in self.to_batches())
        if not request.shape.newest_counts and not request.conditions:
            return sum(self._count_of(plan) for plan in self._plans(request.select(())))
        return sum(rows.num_rows for rows in self.select()._pieces())  # noqa: SLF001 - of this class

    def scan(self) -> Scan:
        """What answering takes: files, row groups and bytes that are read, and those that are skipped."""
        return Scan(tuple(scan for plan in self._plans(self._request) for scan in plan.scans()))

    def slices(self) -> list[Slice]:
        """Parts of the answer for several processes; each can be pickled, and gives its `batches()`."""
        return slices_of(self._found.pinned, self._request, self._found.parts, finished=self._finished)

    def __repr__(self) -> str:
        return f"<StateTable {self.title}: {', '.join(f'{field.name} {field.type}' for field in self.schema)}>"

    # ---- inside --------------------------------------------------------------------------------------------------

    @property
    def title(self) -> str:
        """Job, operator, table and epoch."""
        what = "results" if self.finished else self.kind
        return f"{self.job} / {self.operator_name} / {self.table} at epoch {self.epoch} ({what})"

    def _with(self, request: Request, finished: Finished | None = None) -> "StateTable":
        return StateTable(self._found, request, finished)

    def _plans(self, request: Request) -> list[PartPlan]:
        return [PartPlan(request, part, self._found.pinned.fetch) for part in self._found.parts]

    def _pieces(self) -> Iterator[pa.Table]:
        for plan in self._plans(self._request):
            yield from rows_of_part(plan)

    def _count_of(self, plan: PartPlan) -> int:
        """Files all of whose rows count are not opened."""
        count = 0
        for one in plan.files:
            whole = not one.hidden and not plan.request.keys and not plan.request.by_time
            whole = whole and owns_all(one.entry)
            count += one.entry.rows if whole else sum(rows.num_rows for rows in rows_of_part(plan.only(one)))
        return count


def read_state(
    url: str | Path,
    *,
    job: str | None = None,
    operator: str | None = None,
    table: str | None = None,
    epoch: int | None = None,
    savepoint: str | None = None,
    internal: bool = False,
    results: bool = False,
    aggregates: UserAggregates | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> StateTable:
    """The state of one table as it is at an epoch: of each key the newest row, deleted and expired ones left out.

    With `results`, rows of aggregates and top-n are finished: they have the columns that the operator puts out, so that
    `mean` holds the mean. Windows and sessions show their results so far, closed ones are not in the state any more.
    Rows of other tables are shown as they are. User-defined aggregates are finished by the objects in `aggregates`, by
    the name of their column.

    What is left out is found when there is one choice; else the error lists the choices. Without `epoch` and
    `savepoint` it is the newest epoch. `internal` shows `_key_hash` and `_seq`, too. `storage_options` are settings of
    the object store, as of `get_storage_provider`.
    """
    location = find_location(url, job, storage_options=storage_options)
    return table_at(
        location,
        operator=operator,
        table=table,
        epoch=epoch,
        savepoint=savepoint,
        internal=internal,
        results=results,
        aggregates=aggregates,
    )


def table_at(
    location: JobLocation,
    *,
    operator: str | None = None,
    table: str | None = None,
    epoch: int | None = None,
    savepoint: str | None = None,
    internal: bool = False,
    results: bool = False,
    aggregates: UserAggregates | None = None,
) -> StateTable:
    """As `read_state`, of a job that was found."""
    if aggregates and not results:
        raise InputError("`aggregates` finish results, and `results` is False", fix="pass results=True, too")
    found = find_table(location, operator=operator, table=table, epoch=epoch, savepoint=savepoint, results=results)
    shape = TableShape(found.config)
    finished = _finished(found, shape, aggregates) if results else None
    if finished is None:
        return StateTable(found, Request(shape, tuple((shape.full_schema if internal else shape.schema).names)))
    if internal:
        raise InputError(
            "finished results have no internal columns", where=f"table {found.table!r}", fix="leave one of both out"
        )
    request = Request(shape, tuple(shape.full_schema.names), also=frozenset(shape.file_schema.names))
    return StateTable(found, request, finished)


def _finished(found: PinnedTable, shape: TableShape, users: UserAggregates | None) -> Finished | None:
    results = finished_results(found, shape, users)
    if results is None:
        return None
    where = f"{stored_label(found.operator, found.entry.definition)}, table {found.table!r}"
    return Finished(results, tuple(results.columns.names), where=where)
