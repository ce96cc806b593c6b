"""Row-wise joins with small tables: each row with the rows of the table that match it in the epoch that emits it.

The driver loads the table before each epoch and sends it with the tasks, so all attempts of an epoch see the same rows.
Nothing is stored: results are final, and a later change of the table changes only later results.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from statebed.arrays.columns import from_numpy, one_chunk
from statebed.errors import InputError
from statebed.format.schema import TIME
from statebed.format.stream_schema import WEIGHT, Input
from statebed.operators.joins.join_columns import JoinColumns, PairCondition
from statebed.operators.joins.join_type import JoinKind, JoinSide
from statebed.operators.joins.lookup import matched, unnumbered
from statebed.operators.joins.pairs import PairRule
from statebed.present.units import binary_size

MAX_BYTES = 64 << 20
"""Maximum size of a table in memory: it is sent to every task of each epoch."""


@dataclass(eq=False)
class StaticTable:
    """A static table with its rows in the current epoch; serialised with tasks."""

    name: str
    columns: pa.Schema
    rows: pa.Table | None = None

    @property
    def loaded(self) -> pa.Table:
        """The rows; raises InputError where no driver has loaded them."""
        if self.rows is None:
            raise InputError(
                "only Spark can read the table", where=f"table {self.name}", fix="test the query on Spark, with a job"
            )
        return self.rows


@dataclass(frozen=True)
class EpochTable:
    """A table that the driver loads before each epoch."""

    table: StaticTable
    load: Callable[[], pa.Table]

    def refresh(self) -> None:
        """Load the rows of the next epoch; raise InputError if the table is too large."""
        rows = self.load()
        if rows.nbytes > MAX_BYTES:
            raise InputError(
                f"the table takes {binary_size(rows.nbytes)} of memory, but one that is joined between two stateful "
                f"steps may take at most {binary_size(MAX_BYTES)}",
                where=f"table {self.table.name}",
                fix="select only the columns and rows that the query needs, or join it before the first stateful step "
                "or after the last",
            )
        self.table.rows = rows


@dataclass(frozen=True)
class TableJoin:
    """Joins each row with the rows of a table whose columns `keys` equal the stream's columns of the same names."""

    table: StaticTable
    keys: tuple[str, ...]
    how: JoinKind
    before: pa.Schema
    condition: PairCondition | None = None

    @property
    def text(self) -> str:
        terms = [*self.keys, *([] if self.condition is None else [self.condition.text])]
        return f"{self.how.value} join with the table {self.table.name} on {' and '.join(terms) or 'true'}"

    @cached_property
    def pairs(self) -> JoinColumns:
        """Columns of pairs and results."""
        return table_join_columns(self.before, self.table.columns, self.keys, self.how)

    @property
    def columns(self) -> pa.Schema:
        return self.pairs.results

    def apply(self, rows: pa.Table) -> pa.Table:
        hidden = [name for name in (TIME, WEIGHT) if name in rows.schema.names]
        schema = pa.schema([*self.columns, *(rows.schema.field(name) for name in hidden)])
        table = unnumbered(JoinSide.RIGHT, self.table.loaded)
        index = PairRule(self.pairs, condition=self.condition).index(table)
        results = [schema.empty_table()]
        for result, places in matched(self.pairs, index, unnumbered(JoinSide.LEFT, rows)):
            taken = from_numpy(places, pa.int64())
            columns = [*result.columns, *(one_chunk(rows[name]).take(taken) for name in hidden)]
            results.append(pa.Table.from_arrays(columns, schema=schema))
        return pa.concat_tables(results)


def table_join_columns(stream: pa.Schema, table: pa.Schema, keys: tuple[str, ...], how: JoinKind) -> JoinColumns:
    """Return the columns of the pairs and results of a join with a table."""
    return JoinColumns(Input("stream", stream, keys), Input("table", table, keys), how)
