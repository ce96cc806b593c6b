"""State as a table: the rows of an operator at one epoch, read in place.

    trips = read_state("s3://bucket/state", job="rides", operator="per_minute")
    trips.keys("d7").to_arrow()
    trips.between("2024-05-31 12:00", "2024-05-31 13:00").select("driver", "trips").to_pandas()

A `StateTable` is lazy: `select`, `keys`, `between` and `filter` return a narrower one, and no data is read until a
result is requested. Its epoch is fixed on creation, so the job may continue in the meantime.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from statebed.errors import InputError
from statebed.format.schema import TIME
from statebed.inspect.tables.finished_rows import FinishedRows
from statebed.inspect.tables.frames import Answer
from statebed.inspect.tables.pinned import JobLocation, PinnedTable, find_location, find_table
from statebed.inspect.tables.pushdown import by_keys, narrowed
from statebed.inspect.tables.read_plan import PartPlan, owns_all
from statebed.inspect.tables.request import Instant, Key, Request
from statebed.inspect.tables.row_reader import rows_of_part
from statebed.inspect.tables.scan import Scan
from statebed.inspect.tables.slices import Slice, answers_of_part, slices_of
from statebed.inspect.tables.stored_elements import StoredElements
from statebed.inspect.tables.stored_results import finished_results
from statebed.inspect.tables.table_shape import BROADCAST, TableShape
from statebed.operators.finished_results import UserAggregates
from statebed.operators.labels import stored_label, written_name


class StateTable(Answer):
    """One table of an operator at one epoch. Immutable; created by `read_state`.

    >>> sb.testing.write_example("state")
    >>> earned = sb.read_state("state", job="rides", operator="earned", results=True)
    >>> earned.to_arrow().num_rows
    2
    """

    def __init__(self, pinned: PinnedTable, request: Request, finished: FinishedRows | None = None) -> None:
        self._found = pinned
        self._request = request
        self._finished = finished

    @property
    def url(self) -> str:
        """State location."""
        return self._found.pinned.location.url

    @property
    def job(self) -> str:
        return self._found.pinned.location.job

    @property
    def operator(self) -> str:
        return self._found.operator

    @property
    def operator_name(self) -> str:
        """Display name of the operator: the given name, or the user's expression."""
        pinned = self._found
        return written_name(pinned.operator, pinned.entry.definition)

    @property
    def table(self) -> str:
        return self._found.table

    @property
    def description(self) -> str:
        """Description of the table by the operator."""
        return self._found.config.description

    @property
    def kind(self) -> str:
        """Kind of the table: 'keyed', 'time keyed', 'global keyed' or 'broadcast'."""
        return self._request.shape.kind if self._request.shape.broadcast is None else BROADCAST

    @property
    def epoch(self) -> int:
        """Epoch whose state this is; for a run_start or a savepoint, the epoch that it refers to."""
        return self._found.pinned.epoch

    @property
    def record(self) -> int:
        """Number of the record that was read: that of the epoch, or of a run_start with its state."""
        return self._found.pinned.number

    @property
    def savepoint(self) -> str | None:
        """Requested savepoint, or None."""
        return self._found.pinned.savepoint

    @property
    def schema(self) -> pa.Schema:
        """Schema of the rows."""
        return self._request.schema if self._finished is None else self._finished.schema

    @property
    def finished(self) -> bool:
        """Whether rows are final results rather than stored rows."""
        return self._finished is not None

    @property
    def key_columns(self) -> list[str]:
        """Key columns, in order."""
        keys = self._request.shape.keys
        return (
            list(keys)
            if self._finished is None
            else [key for key in keys if key in self._finished.results.columns.names]
        )

    @property
    def time_column(self) -> str | None:
        """Column with the time of rows, or None if they have no time."""
        if self._finished is not None:
            return self._finished.results.time_column
        return TIME if self._request.shape.timed else None

    # ---- narrower questions --------------------------------------------------------------------------------------

    def select(self, *columns: str) -> "StateTable":
        """Return only these columns, in this order; `_key_hash` and `_seq` can be selected too, except for final
        results.
        """
        if self._finished is not None:
            return self._with(self._request, self._finished.select(columns))
        return self._with(self._request.select(columns))

    def keys(self, *keys: Key) -> "StateTable":
        """Return only the rows of these keys; only row groups that may contain them are read.

        A key is a value or, for several key columns, a tuple of values or a dict by column. Text is parsed for other
        types. Pass a list of keys as `keys(*some)`.
        """
        return self._with(self._request.of_keys(keys), self._finished)

    def of_equal(self, values: Mapping[str, Sequence[Any]]) -> "StateTable | None":
        """Return only rows with one of these values in each key column, or None if they do not determine whole keys."""
        request = by_keys(self._request, values)
        return None if request is None else self._with(request, self._finished)

    def between(self, start: Instant | None = None, end: Instant | None = None) -> "StateTable":
        """Return only rows with start <= time < end; None leaves a side open.

        The time of a final result is the start of its window.
        """
        if self._finished is not None:
            finished, request = self._finished.between(start, end, self._request)
            return self._with(request, finished)
        return self._with(self._request.between(start, end))

    def filter(self, condition: str | pc.Expression) -> "StateTable":
        """Return only rows that satisfy a condition: SQL text ("trips > 3 and driver like 'd%'"), or a pyarrow
        expression.

        Conditions of a text on keys and times reduce what is read, as `keys` and `between` do.
        """
        finished, request = self._finished, self._request
        if finished is not None:
            finished = finished.matching(condition)
        else:
            request = request.where(condition)
        return self._with(narrowed(request, condition) if isinstance(condition, str) else request, finished)

    # ---- answers -------------------------------------------------------------------------------------------------

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches; about one row group per open file is held in memory."""
        for plan in self._plans(self._request):
            for rows in answers_of_part(plan, self._finished):
                yield from rows.combine_chunks().to_batches()

    def count(self) -> int:
        """Return the number of rows, reading only what determines it."""
        request = self._request
        if self._finished is not None:
            return sum(batch.num_rows for batch in self.to_batches())
        if not request.shape.newest_counts and not request.conditions:
            return sum(self._count_of(plan) for plan in self._plans(request.select(())))
        return sum(rows.num_rows for rows in self.select()._pieces())  # noqa: SLF001 - of this class

    def scan(self) -> Scan:
        """Return the files, row groups and bytes that a read of the table involves, and those that it skips."""
        return Scan(tuple(scan for plan in self._plans(self._request) for scan in plan.scans()))

    def slices(self) -> list[Slice]:
        """Return slices of the result for several processes; each can be pickled and yields its `batches()`."""
        return slices_of(self._found.pinned, self._request, self._found.parts, finished=self._finished)

    def __repr__(self) -> str:
        return f"<StateTable {self.title}: {', '.join(f'{field.name} {field.type}' for field in self.schema)}>"

    # ---- inside --------------------------------------------------------------------------------------------------

    @property
    def title(self) -> str:
        """Job, operator, table and epoch."""
        what = "results" if self.finished else self.kind
        return f"{self.job} / {self.operator_name} / {self.table} at epoch {self.epoch} ({what})"

    def _with(self, request: Request, finished: FinishedRows | None = None) -> "StateTable":
        return StateTable(self._found, request, finished)

    def _plans(self, request: Request) -> list[PartPlan]:
        return [PartPlan(request, part, self._found.pinned.fetch) for part in self._found.parts]

    def _pieces(self) -> Iterator[pa.Table]:
        for plan in self._plans(self._request):
            yield from rows_of_part(plan)

    def _count_of(self, plan: PartPlan) -> int:
        """Count the rows of a plan without opening files whose rows all count."""
        count = 0
        for file in plan.files:
            whole = not file.hidden and not plan.request.keys and not plan.request.by_time
            whole = whole and owns_all(file.entry)
            count += file.entry.rows if whole else sum(rows.num_rows for rows in rows_of_part(plan.only(file)))
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
    """Return the state of one table at an epoch: the newest row of each key, without deleted and expired ones.

    With `results`, rows of aggregates and top-n are final results: they have the output columns of the operator, so
    that `mean` holds the mean. Windows and sessions show their results so far; closed ones are no longer in the state.
    Rows of other tables are shown as they are. User-defined aggregates are computed by the objects in `aggregates`, by
    column name.

    Arguments left out are filled in if there is only one choice; otherwise the error lists the choices. Without `epoch`
    and `savepoint`, the newest epoch is read. `internal` adds the columns `_key_hash` and `_seq`. `storage_options` are
    settings of the object store, as for `get_storage_provider`.

    >>> sb.testing.write_example("state")
    >>> earned = sb.read_state("state", job="rides", operator="earned", results=True)
    >>> sorted(earned.to_arrow().to_pylist(), key=str)
    [{'driver': 'ann', 'total': 7.5}, {'driver': 'bob', 'total': 5.0}]
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
    """Return a table like `read_state`, for a job whose location is known."""
    if aggregates and not results:
        raise InputError("`aggregates` compute final results, but `results` is False", fix="pass results=True, too")
    pinned = find_table(location, operator=operator, table=table, epoch=epoch, savepoint=savepoint, results=results)
    shape = pinned.shape
    finished = _finished(pinned, shape, aggregates) if results else None
    if finished is None:
        return StateTable(pinned, Request(shape, tuple((shape.full_schema if internal else shape.schema).names)))
    if internal:
        raise InputError(
            "final results have no internal columns",
            where=f"table {pinned.table!r}",
            fix="pass either `results` or `internal`",
        )
    request = Request(shape, tuple(shape.full_schema.names), also=frozenset(shape.file_schema.names))
    return StateTable(pinned, request, finished)


def _finished(pinned: PinnedTable, shape: TableShape, users: UserAggregates | None) -> FinishedRows | None:
    results = finished_results(pinned, shape, users)
    if results is None:
        return None
    where = f"{stored_label(pinned.operator, pinned.entry.definition)}, table {pinned.table!r}"
    return FinishedRows(results, tuple(results.columns.names), StoredElements.beside(pinned), where=where)
