"""The as-of join: each left row gets the version of its key that was valid at its event time.

The right input has versions: a row is valid for its key from its event time until the next one. A left row waits until
the watermark passes its time, so that out-of-order versions are seen; then it gets the newest version that is not after
it. If several versions have the same key and time, the last in total order wins (the greatest by its columns from left
to right, nulls last). A version whose `deleted` column is true ends its key: the key has no version until the next one.

State: left rows and versions after the watermark in two time-keyed tables, and the last version at or before it in a
keyed one. With a tolerance, versions older than the tolerance are not matched and are deleted; without one, the last
version is kept until a newer one arrives.
"""

import datetime as dt
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.columns import boolean_values, from_numpy, int64_values, one_chunk, uint64_values
from statebed.arrays.key_hash import HASH_SEED, hash_columns
from statebed.errors import InputError
from statebed.format import names
from statebed.format.schema import KEY_HASH, TIME, TIMESTAMP
from statebed.format.stream_schema import Input, Output
from statebed.operators.input_rows import admit, filtered, without_routing
from statebed.operators.joins.inputs import SIDES, Sides, gathered_sides, late_outputs
from statebed.operators.joins.join_columns import SUFFIXES, JoinColumns
from statebed.operators.joins.join_index import KeyIndex, searched, without_nulls
from statebed.operators.joins.join_type import JoinKind, JoinSide
from statebed.operators.joins.pairs import together
from statebed.operators.joins.sorted_results import SortedResults
from statebed.operators.keyed_rows import KeyedRows, by_key, state_keys
from statebed.operators.labels import operator_label
from statebed.operators.operator import MAIN, Clock, Definition, OperatorBase, StepResult, Tables
from statebed.quantities import duration_text
from statebed.state import KeyedView, TableConfig, TimeKeyedView, keyed_table_config, timestamp_table_config
from statebed.state.live.files import BEGINNING, END
from statebed.state.live.row_set import ascending

Integers = npt.NDArray[np.int64]

WAITING = "waiting"
PENDING = "pending"
CURRENT = "current"
VERSION_TIME = "_version_time"
"""Column of the table of current versions with the event time of each version."""
BIN = dt.timedelta(minutes=1)


@dataclass(frozen=True)
class AsOfJoin(OperatorBase):
    """Definition of an as-of join."""

    operator_id: str
    left: Input
    right: Input
    """Input of the versions."""
    how: JoinKind = JoinKind.LEFT
    """LEFT, or INNER to drop left rows without a version."""
    tolerance_us: int | None = None
    """Maximum age of a version relative to the left row; None for no limit."""
    deleted: str | None = None
    """Boolean column of versions that ends the key where true; not a column of the result."""
    suffixes: tuple[str, str] = SUFFIXES

    def __post_init__(self) -> None:
        names.check_part("operator", self.operator_id)
        where = operator_label(self)
        if self.how not in {JoinKind.LEFT, JoinKind.INNER}:
            raise InputError(
                f"`how` of an as-of join must be 'left' or 'inner', got {self.how.value!r}",
                where=where,
                fix="use 'left' or 'inner': versions are looked up for left rows",
            )
        if self.tolerance_us is not None and self.tolerance_us <= 0:
            raise InputError(
                f"`tolerance` must be positive, got {duration_text(self.tolerance_us)!r}",
                where=where,
                fix="use a duration like '1 hour', or leave it out to accept versions of any age",
            )
        if self.deleted is not None and not self._is_flag(self.deleted):
            flags = ", ".join(field.name for field in self.right.columns if pa.types.is_boolean(field.type))
            raise InputError(
                f"`deleted` must be a boolean non-key column of {self.right.name}, got {self.deleted!r}",
                where=where,
                fix=f"use one of {flags}" if flags else "add one first: with_columns(gone=\"action = 'delete'\")",
            )
        if VERSION_TIME in self.right.columns.names:
            raise InputError(f"the column name {VERSION_TIME!r} is reserved", where=where, fix="rename the column")
        self.columns.check(where=where)
        self.columns.check_append_only(where=where)

    def _is_flag(self, name: str) -> bool:
        columns = self.right.columns
        return name in columns.names and name not in self.right.keys and pa.types.is_boolean(columns.field(name).type)

    @cached_property
    def columns(self) -> JoinColumns:
        """Columns of the results."""
        shown = pa.schema([field for field in self.right.columns if field.name != self.deleted])
        return JoinColumns(self.left, replace(self.right, columns=shown), self.how, self.suffixes)

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (self.left, self.right)

    @cached_property
    def outputs(self) -> Mapping[str, Output]:
        sides = replace(self.columns, right=self.right)
        return {MAIN: Output(self.columns.results), **late_outputs(sides)}

    @cached_property
    def tables(self) -> Mapping[str, TableConfig]:
        tolerance = None if self.tolerance_us is None else dt.timedelta(microseconds=self.tolerance_us)
        keys = state_keys(self.right)
        values = [self._version_fields.field(name) for name in self._values]
        return {
            WAITING: _timed_table(WAITING, self.left, "that wait for the watermark"),
            PENDING: _timed_table(PENDING, self.right, "after the watermark"),
            CURRENT: keyed_table_config(
                CURRENT,
                f"the last version of each key of {self.right.name}, up to the watermark",
                [key.name for key in keys],
                pa.schema([*keys, *values, pa.field(VERSION_TIME, TIMESTAMP)]),
                tolerance,
            ),
        }

    @cached_property
    def definition(self) -> Definition:
        return Definition.of(
            kind="as_of_join",
            tolerance_us=self.tolerance_us,
            deleted=self.deleted,
            **replace(self.columns, right=self.right).described(),
        )

    def is_due(self, before_us: int | None, after_us: int) -> bool:
        """Return True: rows of any time may be waiting."""
        return before_us is None or after_us > before_us

    def step(self, tables: Tables, batches: Sequence[Iterable[pa.RecordBatch]], clock: Clock) -> StepResult:
        columns = replace(self.columns, right=self.right)
        if clock.watermark_us is not None:
            for name in (WAITING, PENDING):  # while the rows of the epoch arrive
                tables.get_time_keyed(name).prefetch(None, min(clock.watermark_us + 1, END), spare=True)
        rows = gathered_sides(columns, batches, where=operator_label(self))
        sides = Sides(columns, self.operator_id, {side: admit(rows[side], clock.late_us) for side in SIDES})
        view = tables.get_time_keyed(WAITING)
        waiting = self._due(view, self.left, sides.admitted[JoinSide.LEFT].rows, clock)
        pending = self._due(tables.get_time_keyed(PENDING), self.right, sides.admitted[JoinSide.RIGHT].rows, clock)
        versions = by_key(self._with_keys(pa.concat_tables(pending).combine_chunks()), self.right)
        current = tables.get_keyed(CURRENT)
        with SortedResults(self.outputs[MAIN].schema, self.left.keys, view) as results:
            for due in together(waiting, max_bytes=view.chunk_bytes):
                for joined in self._results(due, versions, current):
                    results.add(joined)
            self._advance(current, versions)
            return sides.result(clock, results.table())

    def _due(self, view: TimeKeyedView, input_: Input, new: pa.Table, clock: Clock) -> Iterator[pa.Table]:
        """Return new and stored rows up to the watermark; store the other new rows.

        The stored rows are read in pieces, of which one is in memory at a time, and deleted when all of them are read.
        """
        last = clock.watermark_us
        due = np.zeros(new.num_rows, dtype=np.bool_) if last is None else int64_values(new[TIME]) <= last
        old = iter(()) if last is None else _taken_out(view, input_, min(last + 1, END))
        kept = ~due
        if input_ is self.right or self.how is JoinKind.INNER:
            kept &= without_nulls([one_chunk(new[key]) for key in input_.keys], new.num_rows)
        if kept.any():
            view.append(without_routing(filtered(new, kept)))
        return itertools.chain([filtered(new, due)], old)

    def _with_keys(self, versions: pa.Table) -> pa.Table:
        has_key = without_nulls([one_chunk(versions[key]) for key in self.right.keys], versions.num_rows)
        return filtered(versions, has_key)

    def _results(self, rows: pa.Table, versions: KeyedRows, current: KeyedView) -> Iterator[pa.Table]:
        """Yield each row with its version."""
        if not rows.num_rows:
            return
        held, at = self._versions_of(rows, versions, current)
        valid = at >= 0
        if self.deleted is not None and held.num_rows:
            valid &= ~boolean_values(held[self.deleted])[at]
        if self.tolerance_us is not None and held.num_rows:
            ages = int64_values(rows[TIME]) - int64_values(held[TIME])[at]
            valid &= ages <= self.tolerance_us
        matched, alone = np.flatnonzero(valid), np.flatnonzero(~valid)
        pairs = self.columns.paired(rows, matched, held, at[matched])
        yield _timed(pairs, rows, matched)
        if self.how is JoinKind.LEFT:
            yield _timed(self.columns.alone(JoinSide.LEFT, rows, alone), rows, alone)

    def _versions_of(self, rows: pa.Table, keyed: KeyedRows, current: KeyedView) -> tuple[pa.Table, Integers]:
        """Return versions, and the index of the version of each row, -1 if it has none."""
        keys = [one_chunk(rows[key]) for key in self.left.keys]
        with_key = np.flatnonzero(without_nulls(keys, rows.num_rows))
        indices = from_numpy(with_key, pa.int64())
        key_values = [key.take(indices) for key in keys]
        hashes = uint64_values(rows[KEY_HASH])[with_key] if keys else np.zeros(len(with_key), dtype=np.uint64)
        firsts = _hashes(keyed.keys, self.right)
        groups = KeyIndex(firsts, [one_chunk(keyed.keys[key]) for key in self.right.keys]).find(hashes, key_values)
        at = np.full(rows.num_rows, -1, dtype=np.int64)
        at[with_key] = _last_up_to(
            groups, int64_values(rows[TIME])[with_key], keyed.key_index, int64_values(keyed.rows[TIME]), keyed.starts
        )
        older = with_key[at[with_key] < 0]
        names_of_versions = self._version_fields.names
        held = keyed.rows.select(names_of_versions).cast(self._version_fields)
        if not len(older):
            return held, at
        values, there = current.get(self._state_keys(rows, older))
        arrays = [one_chunk(values[name]) for name in self._values]
        own = dict(zip(self._values, arrays, strict=True)) | {TIME: one_chunk(values[VERSION_TIME])}
        own |= {right: one_chunk(rows[left].take(from_numpy(older, pa.int64()))) for left, right in self._key_pairs}
        state = pa.Table.from_arrays([own[name] for name in names_of_versions], schema=self._nullable_version_fields)
        at[older[there]] = held.num_rows + np.flatnonzero(there)
        held = pa.concat_tables([held.cast(self._nullable_version_fields), state]).combine_chunks()
        return held, at

    def _advance(self, current: KeyedView, keyed: KeyedRows) -> None:
        """Store the last of these versions of each key as the current one."""
        if not keyed.count:
            return
        last = keyed.at(keyed.lasts, keyed.unordered.column_names)
        gone = np.zeros(keyed.count, dtype=np.bool_)
        if self.deleted is not None:
            gone = boolean_values(last[self.deleted])
        if not gone.all():
            kept = filtered(last, ~gone)
            columns = {name: kept[name] for name in self._values} | {VERSION_TIME: kept[TIME]}
            times = None if self.tolerance_us is None else one_chunk(kept[TIME])
            current.upsert(filtered(keyed.keys, ~gone), pa.table(columns), times=times)
        if gone.any():
            current.delete(filtered(keyed.keys, gone))

    @cached_property
    def _values(self) -> list[str]:
        """Columns of a version that the state keeps in addition to its key and time."""
        return [name for name in self.right.columns.names if name not in self.right.keys]

    @cached_property
    def _version_fields(self) -> pa.Schema:
        return pa.schema([*self.right.columns, pa.field(TIME, TIMESTAMP)])

    @cached_property
    def _nullable_version_fields(self) -> pa.Schema:
        return pa.schema([field.with_nullable(True) for field in self._version_fields])

    @property
    def _key_pairs(self) -> list[tuple[str, str]]:
        return list(zip(self.left.keys, self.right.keys, strict=True))

    def _state_keys(self, rows: pa.Table, at: Integers) -> pa.Table:
        """Return the keys of the left rows at `at`, with the column names of the table of versions."""
        schema, indices = pa.schema(state_keys(self.right)), from_numpy(at, pa.int64())
        arrays = [one_chunk(rows[key]).take(indices) for key in self.left.keys]
        return pa.Table.from_arrays(arrays or [pa.nulls(len(at), schema.field(0).type)], schema=schema)


def _last_up_to(groups: Integers, times: Integers, keys: Integers, versions: Integers, starts: Integers) -> Integers:
    """Return, for each key and time, the last version of that key that is not after it; -1 if there is none."""
    if not len(versions):
        return np.full(len(groups), -1, dtype=np.int64)
    distinct = ascending(versions)
    stride = len(distinct) + 1
    places = keys * stride + searched(distinct, versions, "left")
    behind = searched(places, groups * stride + searched(distinct, times, "right"), "left")
    known = (groups >= 0) & (behind - 1 >= starts[np.maximum(groups, 0)])
    return np.where(known, behind - 1, -1)


def _timed_table(name: str, input_: Input, which: str) -> TableConfig:
    # Rows are deleted when they are due, so the retention never applies.
    return timestamp_table_config(
        name,
        f"rows of {input_.name} {which}",
        dt.timedelta(microseconds=1),
        False,
        input_.columns,
        keys=input_.keys,
        bin_width=BIN,
    )


def _hashes(rows: pa.Table, input_: Input) -> npt.NDArray[np.uint64]:
    if not input_.keys:
        return np.zeros(rows.num_rows, dtype=np.uint64)
    return hash_columns([one_chunk(rows[key]) for key in input_.keys])


def _taken_out(view: TimeKeyedView, input_: Input, end_us: int) -> Iterator[pa.Table]:
    """Yield the stored rows before `end_us`, then delete them: deleted segments give up what was prefetched."""
    for piece in view.scan(None, end_us):
        yield _routed(piece, input_)
    view.delete_times(BEGINNING, end_us)


def _routed(rows: pa.Table, input_: Input) -> pa.Table:
    """Return rows of the state with the columns of an input, including the key hash."""
    hashes = _hashes(rows, input_) if input_.keys else np.full(rows.num_rows, HASH_SEED, dtype=np.uint64)
    hashed = from_numpy(hashes.view(np.int64), pa.int64())
    columns = [hashed, *(rows[name] for name in input_.schema.names[1:])]
    return pa.Table.from_arrays(columns, schema=input_.schema)


def _timed(results: pa.Table, rows: pa.Table, at: Integers) -> pa.Table:
    times = one_chunk(rows[TIME]).take(from_numpy(at, pa.int64()))
    return results.append_column(pa.field(TIME, TIMESTAMP), times)
