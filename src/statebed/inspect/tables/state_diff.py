"""Changes of a table between two epochs, row by row.

    diff_state("s3://bucket/state", job="rides", operator="per_minute", since=40, until=42).to_pandas()

The epochs may have different parallelism and belong to different lineages: their contents are compared. Rows of a keyed
table are identified by key, those of a time-keyed one by key and time. If columns have changed, rows are shown with
those of the later epoch.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import from_numpy
from statebed.errors import CorruptObjectError, InputError
from statebed.format.schema import TIME, merge_schema_lists
from statebed.inspect.tables.comparison import ComparedSide, compare, hash_ranges
from statebed.inspect.tables.frames import Answer
from statebed.inspect.tables.pinned import JobLocation, PinnedTable, find_location, find_table
from statebed.inspect.tables.request import Key, Request
from statebed.inspect.tables.stored_elements import StoredElements
from statebed.inspect.tables.stored_results import finished_results
from statebed.inspect.tables.table_shape import TIME_KEYED, TableShape
from statebed.operators.changelog import group_equal
from statebed.operators.finished_results import Results, UserAggregates
from statebed.operators.labels import stored_label, written_name


class StateDiff(Answer):
    """Changes of one table, created by `diff_state`. Nothing is read until they are requested.

    The first column of rows is `change`: 'insert', 'delete', 'update_before' or 'update_after'.

    >>> sb.testing.write_example("state")
    >>> changes = sb.diff_state("state", job="rides", operator="earned", since=2)
    >>> changes.to_arrow().num_rows
    1
    """

    def __init__(
        self,
        before: PinnedTable,
        after: PinnedTable,
        keys: tuple[tuple[Key, ...], ...] = (),
        results: Results | None = None,
    ) -> None:
        self._found = before, after
        self._keys = keys
        self._results = results
        shapes = [table.shape for table in self._found]
        if shapes[0].kind != shapes[1].kind:
            raise InputError(
                f"the table was {shapes[0].kind} at epoch {self.since}, and is {shapes[1].kind} at epoch {self.until}",
                where=f"table {after.table!r}",
                fix="compare epochs between which its kind did not change",
            )
        try:
            merge_schema_lists(part.schemas for table in self._found for part in table.parts)
        except CorruptObjectError as error:
            raise InputError(
                f"the columns of the table evolved differently up to the epochs {self.since} and {self.until}",
                where=f"table {after.table!r}",
                fix="compare epochs of one lineage, or read both and compare the columns that you need",
            ) from error
        requests = [
            Request(shape, tuple(shape.full_schema.names), also=frozenset(shape.file_schema.names)) for shape in shapes
        ]
        for alternatives in keys:
            requests = [request.of_keys(alternatives) for request in requests]
        self._sides = [
            ComparedSide(request, table.parts, table.pinned.fetch)
            for request, table in zip(requests, self._found, strict=True)
        ]

    @property
    def table(self) -> str:
        return self._found[1].table

    @property
    def operator(self) -> str:
        return self._found[1].operator

    @property
    def operator_name(self) -> str:
        """Display name of the operator: the given name, or the user's expression."""
        table = self._found[1]
        return written_name(table.operator, table.entry.definition)

    @property
    def schema(self) -> pa.Schema:
        """`change`, followed by the columns of the table or of its results."""
        return change_schema(self._columns)

    @property
    def finished(self) -> bool:
        """Whether rows are results, not what the state stores of them."""
        return self._results is not None

    @property
    def key_columns(self) -> list[str]:
        return [name for name in self._shape.keys if name in self._columns.names]

    @property
    def since(self) -> int:
        """Earlier epoch."""
        return self._found[0].pinned.epoch

    @property
    def until(self) -> int:
        """Later epoch."""
        return self._found[1].pinned.epoch

    def keys(self, *keys: Key) -> "StateDiff":
        """Return only the changes of these keys, given as for `StateTable.keys`."""
        return StateDiff(*self._found, keys=(*self._keys, keys), results=self._results)

    @property
    def ranges(self) -> int:
        """Number of hash ranges that can be compared independently of each other."""
        return len(hash_ranges(*self._sides))

    def to_batches(self, *, only: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the changes in batches; an update_after follows its update_before.

        `only` is the number of a hash range, from 0 to `ranges - 1`; None for all of them.
        """
        timed = TIME if self._shape.kind == TIME_KEYED else self._results and self._results.time_column
        identity = [*self.key_columns, *([timed] if timed else [])]
        for both in compare(*self._sides, only=only):
            before, after = (self._shown(rows, table) for rows, table in zip(both, self._found, strict=True))
            changes = changes_of(before, after, identity, self._columns)
            if changes.num_rows:
                yield from changes.combine_chunks().to_batches()

    def counts(self) -> dict[str, int]:
        """Return the number of changes of each kind."""
        by_kind: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
        for batch in self.to_batches():
            by_kind.update(
                {count["values"]: count["counts"] for count in batch.column(CHANGE).value_counts().to_pylist()}
            )
        return dict(by_kind)

    def __repr__(self) -> str:
        return f"<StateDiff {self.title}>"

    @property
    def title(self) -> str:
        """Job, operator, table and epochs."""
        table = self._found[1]
        job = table.pinned.location.job
        return f"{job} / {self.operator_name} / {table.table}, changes from epoch {self.since} to {self.until}"

    @property
    def _columns(self) -> pa.Schema:
        return self._shape.schema if self._results is None else self._results.columns

    def _shown(self, rows: pa.Table, table: PinnedTable) -> pa.Table:
        """Finish the rows of one side where results are wanted."""
        if self._results is None:
            return rows
        results = self._results.finish([rows], StoredElements.beside(table))
        return pa.concat_tables([self._columns.empty_table(), *results])

    @property
    def _shape(self) -> TableShape:
        return self._sides[1].request.shape


def diff_state(
    url: str | Path,
    *,
    job: str | None = None,
    operator: str | None = None,
    table: str | None = None,
    since: int | str,
    until: int | str | None = None,
    results: bool = False,
    aggregates: UserAggregates | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> StateDiff:
    """Return the changes from the state at `since` to that at `until` (default: the newest epoch).

    A text names a savepoint.

    With `results`, rows of aggregates, sessions and top-n are finished first, as by `read_state(results=True)`, so that
    changes show the columns that the operator puts out. Windows of other kinds cannot be compared in this way: a result
    is made of several panes, which change one by one.

    >>> sb.testing.write_example("state")
    >>> sb.diff_state("state", job="rides", operator="earned", since=2).to_arrow()["driver"].to_pylist()
    ['bob']
    """
    location = find_location(url, job, storage_options=storage_options)
    return diff_at(
        location,
        operator=operator,
        table=table,
        since=since,
        until=until,
        results=results,
        aggregates=aggregates,
    )


def diff_at(
    location: JobLocation,
    *,
    operator: str | None = None,
    table: str | None = None,
    since: int | str,
    until: int | str | None = None,
    results: bool = False,
    aggregates: UserAggregates | None = None,
) -> StateDiff:
    """Return the changes like `diff_state`, for a job whose location is known."""
    if aggregates and not results:
        raise InputError("`aggregates` compute final results, but `results` is False", fix="pass results=True, too")
    after = _find(location, operator, table, until, results=results)
    finished = finished_results(after, after.shape, aggregates) if results else None
    if finished is not None and finished.in_time_order:
        raise InputError(
            "results of windows are made of several panes, which change one by one",
            where=f"{stored_label(after.operator, after.entry.definition)}, table {after.table!r}",
            fix="compare the stored rows (results=False), or read the results of both epochs with read_state",
        )
    # Anything left out is the same on both sides.
    before = _find(location, after.operator, after.table, since, results=results)
    return StateDiff(before, after, results=finished)


def _find(
    location: JobLocation, operator: str | None, table: str | None, at: int | str | None, *, results: bool
) -> PinnedTable:
    if isinstance(at, str):
        return find_table(location, operator=operator, table=table, savepoint=at, results=results)
    return find_table(location, operator=operator, table=table, epoch=at, results=results)


CHANGE = "change"
INSERT, DELETE, UPDATE_BEFORE, UPDATE_AFTER = KINDS = ("insert", "delete", "update_before", "update_after")


def change_schema(rows: pa.Schema) -> pa.Schema:
    """Return the schema of changes of rows."""
    return pa.schema([pa.field(CHANGE, pa.string(), nullable=False), *rows])


def changes_of(before: pa.Table, after: pa.Table, identity: list[str], schema: pa.Schema) -> pa.Table:
    """Return the changes. Rows that agree in the columns of `identity` are versions of the same row, and both sides of
    an update are adjacent. All rows of an identity must be passed together. Rows that occur equally often on both sides
    are left out.
    """
    sides = [pa.Table.from_arrays([rows[name] for name in schema.names], schema=schema) for rows in (before, after)]
    both = pa.concat_tables(sides).combine_chunks()
    is_after = np.arange(both.num_rows) >= before.num_rows
    grouping = group_equal(both)
    net = grouping.add(np.where(is_after, np.int64(1), np.int64(-1)))
    changed = np.flatnonzero(net)
    rows = np.repeat(grouping.first_rows[changed], np.abs(net[changed]))
    came = np.repeat(net[changed] > 0, np.abs(net[changed]))
    changed_rows = both.take(from_numpy(rows, pa.int64()))
    if identity:
        same = group_equal(changed_rows.select(identity))
        groups, updated = same.group_of_rows(), same.any(came) & same.any(~came)
    else:
        groups, updated = np.zeros(len(rows), dtype=np.int64), np.zeros(1, dtype=np.bool_)
    order = np.lexsort((came, groups))
    kinds = np.where(updated[groups], 2 + came.astype(np.int64), 1 - came.astype(np.int64))
    labels = pa.array(KINDS).take(from_numpy(kinds[order], pa.int64()))
    ordered = changed_rows.take(from_numpy(order.astype(np.int64), pa.int64()))
    return pa.Table.from_arrays([labels, *ordered.columns], schema=change_schema(schema))
