"""Selection of rows from segments, and the schema that rows have in every tier."""

import dataclasses
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.columns import from_numpy, int64_values, uint64_values
from statebed.arrays.null_structs import with_fields
from statebed.errors import InputError
from statebed.format import checkpoint_pb2 as pb
from statebed.format.ranges import in_range
from statebed.format.schema import BIN, KEY_HASH, TIME
from statebed.format.segment import SegmentSpec
from statebed.state.memory.sizes import ArrowRows

FEW_HASHES = 64
"""Up to this number of hashes, row groups are selected for each hash separately."""
FEW_VALUES = 1024
"""Up to this number of values are searched for without filtering them by their leading bits first."""
MIN_BITS = 10
BITS_FOR_EACH = 16
"""Entries per wanted hash in the table of leading bits; about one in this many other values passes the filter."""


@dataclass(frozen=True)
class Selection:
    """Rows and columns to read. None means no limit."""

    columns: tuple[str, ...] | None = None
    owned: pb.HashRange | None = None
    start_us: int | None = None
    """First bin to read, or first time in a table without bins."""
    end_us: int | None = None
    """End of the bins (or times) to read, exclusive."""
    hashes: npt.NDArray[np.uint64] | None = dataclasses.field(default=None, compare=False)
    """Key hashes to read, ascending. Other keys may have the same hash."""

    def apply(self, table: pa.Table) -> pa.Table:
        """Return exactly the selected rows, as a slice if they are contiguous, otherwise as a copy."""
        wanted = np.ones(table.num_rows, dtype=np.bool_)
        if self.owned is not None:
            wanted &= in_range(uint64_values(table[KEY_HASH]), self.owned)
        if self.hashes is not None:
            wanted &= among(uint64_values(table[KEY_HASH]), self.hashes)
        if self._limits_times:
            wanted &= self._in_time(int64_values(table[_clock(table.column_names)]))
        return self._taken(table, np.flatnonzero(wanted))

    def apply_to(self, table: pa.Table, rows: npt.NDArray[np.int64]) -> pa.Table:
        """Apply the selection to `rows`, in order, which are known to have wanted hashes in the owned range."""
        if self._limits_times:
            clock = table[_clock(table.column_names)]
            rows = rows.compress(self._in_time(int64_values(clock.take(from_numpy(rows, pa.int64())))))
        return self._taken(table, rows)

    @property
    def _limits_times(self) -> bool:
        return self.start_us is not None or self.end_us is not None

    def _in_time(self, times: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        wanted = np.ones(len(times), dtype=np.bool_)
        if self.start_us is not None:
            wanted &= times >= self.start_us
        if self.end_us is not None:
            wanted &= times < self.end_us
        return wanted

    def _taken(self, table: pa.Table, indices: npt.NDArray[np.int64]) -> pa.Table:
        rows = table if self.columns is None else table.select(list(self.columns))
        if len(indices) == table.num_rows:
            return rows
        if not len(indices) or indices[-1] - indices[0] + 1 == len(indices):
            return rows.slice(int(indices[0]) if len(indices) else 0, len(indices))
        return rows.take(from_numpy(indices, pa.int64()))

    def needed(self, names: list[str]) -> list[str]:
        """Return the columns that must be read to apply the selection."""
        if self.columns is None:
            return names
        deciding = [KEY_HASH] if self.owned is not None or self.hashes is not None else []
        if self._limits_times:
            deciding.append(_clock(names))
        return [*self.columns, *(name for name in deciding if name not in self.columns)]

    def hash_ranges(self) -> list[pb.HashRange]:
        """Return ranges that cover all wanted hashes: one for each if there are few, otherwise one for all."""
        if self.hashes is None or not len(self.hashes):
            return []
        ends = [(hash_value, hash_value) for hash_value in self.hashes.tolist()]
        if len(ends) > FEW_HASHES:
            ends = [(ends[0][0], ends[-1][1])]
        return [pb.HashRange(first=first, last=last) for first, last in ends]


ALL_ROWS = Selection()


def _clock(names: list[str]) -> str:
    """Return the column by which times are selected."""
    return BIN if BIN in names else TIME


def among(values: npt.NDArray[np.uint64], wanted: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Return a mask of the values that are in `wanted`, which is ascending."""
    contained = np.zeros(len(values), dtype=np.bool_)
    if not len(wanted):
        return contained
    maybe = np.arange(len(values), dtype=np.int64)
    if len(values) > max(FEW_VALUES, len(wanted) // 4):
        # With many values, filtering them by their leading bits first is faster, because that rules most of them out.
        shift = np.uint64(64 - max(MIN_BITS, (BITS_FOR_EACH * len(wanted)).bit_length()))
        marked = np.zeros(1 << (64 - int(shift)), dtype=np.bool_)
        marked[(wanted >> shift).view(np.int64)] = True
        maybe = np.flatnonzero(marked[(values >> shift).view(np.int64)])
    places = np.minimum(np.searchsorted(wanted, values[maybe]), len(wanted) - 1)
    contained[maybe] = wanted[places] == values[maybe]
    return contained


def row_schema(spec: SegmentSpec) -> pa.Schema:
    """Return the columns of a table's rows: those of its files, without field ids."""
    return pa.schema([field.remove_metadata() for field in spec.schema])


def with_row_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns, as read from any tier, with their fields in `schema`."""
    return with_fields(table, pa.schema([schema.field(name) for name in table.column_names]))


def conformed(rows: ArrowRows, *, spec: SegmentSpec) -> pa.Table:
    """Return the rows with exactly the columns of the table, in order. Raise if they differ."""
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
    schema = row_schema(spec)
    if not table.schema.equals(schema, check_metadata=True):
        table = _with_columns_of(table, schema, spec)
    for field in schema:
        if not field.nullable and table[field.name].null_count:
            raise InputError(
                f"the column {field.name!r} holds nulls, but is not nullable", where=f"table {spec.table!r}"
            )
    return table


def _with_columns_of(table: pa.Table, schema: pa.Schema, spec: SegmentSpec) -> pa.Table:
    types = {field.name: field.type for field in table.schema}
    wanted = {field.name: field.type for field in schema}
    if types != wanted or len(table.schema) != len(types):
        raise InputError(
            f"rows with the columns {_described(table.schema)} do not fit the columns {_described(schema)}",
            where=f"table {spec.table!r}",
            fix="pass exactly the columns of the table's segments, with their types",
        )
    return pa.Table.from_arrays([table[name] for name in schema.names], schema=schema)


def _described(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
