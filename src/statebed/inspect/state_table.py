"""State as a table: what an operator knows at one epoch, read where it lies.

    trips = read_state("s3://bucket/state", job="rides", operator="per_minute")
    trips.keys("d7").to_arrow()
    trips.between("2024-05-31 12:00", "2024-05-31 13:00").select("driver", "trips").to_pandas()

A `StateTable` is a question, not an answer: `select`, `keys`, `between` and `filter` give a narrower one, and nothing
of the data is read before an answer is asked for. Its epoch is fixed when it is made, so a job may go on meanwhile.
"""

import datetime as dt
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from statebed.inspect.scan import Scan

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl

Instant = dt.datetime | str | int
"""A time: a datetime (without a zone: UTC), a text such as '2024-05-31 12:00', or microseconds since 1970."""
Key = Any
"""One key: a value, a tuple of the values of several key columns, or a dict from column to value."""


class StateTable:
    """One table of an operator at one epoch. Immutable; made by `read_state`."""

    @property
    def url(self) -> str:
        """The state location."""
        raise NotImplementedError

    @property
    def job(self) -> str:
        raise NotImplementedError

    @property
    def operator(self) -> str:
        raise NotImplementedError

    @property
    def table(self) -> str:
        raise NotImplementedError

    @property
    def kind(self) -> str:
        """'keyed', 'time keyed' or 'global keyed'."""
        raise NotImplementedError

    @property
    def epoch(self) -> int:
        """The epoch whose state this is; of a run_start or a savepoint the epoch that it stands for."""
        raise NotImplementedError

    @property
    def schema(self) -> pa.Schema:
        """The columns that answers have."""
        raise NotImplementedError

    @property
    def columns(self) -> list[str]:
        """Their names."""
        raise NotImplementedError

    @property
    def key_columns(self) -> list[str]:
        """The columns that make the key, in their order."""
        raise NotImplementedError

    @property
    def time_column(self) -> str | None:
        """The column of the rows' times; None: they have none."""
        raise NotImplementedError

    # ---- narrower questions --------------------------------------------------------------------------------------

    def select(self, *columns: str) -> "StateTable":
        """Only these columns, in this order; `_key_hash` and `_seq` can be asked for, too."""
        raise NotImplementedError

    def keys(self, *keys: Key) -> "StateTable":
        """Only rows of these keys; reads the row groups alone that may hold them."""
        raise NotImplementedError

    def between(self, start: Instant | None = None, end: Instant | None = None) -> "StateTable":
        """Only rows with start <= time < end; None: from the beginning, to the end."""
        raise NotImplementedError

    def filter(self, condition: str | pc.Expression) -> "StateTable":
        """Only rows for which a condition holds: SQL text ("trips > 3 and driver like 'd%'"), or one of pyarrow."""
        raise NotImplementedError

    # ---- answers -------------------------------------------------------------------------------------------------

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, piece by piece; about one row group of each open file is held."""
        raise NotImplementedError

    def to_arrow(self) -> pa.Table:
        """All rows."""
        raise NotImplementedError

    def head(self, rows: int = 10) -> pa.Table:
        """The first rows that are found; reads no more than it needs for them."""
        raise NotImplementedError

    def count(self) -> int:
        """How many rows there are."""
        raise NotImplementedError

    def scan(self) -> Scan:
        """What answering takes: files, row groups and bytes that are read, and those that are skipped."""
        raise NotImplementedError

    def to_pandas(self) -> "pd.DataFrame":
        """All rows as a data frame of pandas."""
        raise NotImplementedError

    def to_polars(self) -> "pl.DataFrame":
        """All rows as a data frame of polars."""
        raise NotImplementedError

    def to_duckdb(self, connection: "duckdb.DuckDBPyConnection | None" = None) -> "duckdb.DuckDBPyRelation":
        """The rows as a relation of DuckDB, for SQL: `.to_duckdb().query("s", "select count(*) from s")`."""
        raise NotImplementedError

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The rows for any library that takes Arrow streams."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        raise NotImplementedError


def read_state(
    url: str,
    *,
    job: str | None = None,
    operator: str | None = None,
    table: str | None = None,
    epoch: int | None = None,
    savepoint: str | None = None,
    internal: bool = False,
) -> StateTable:
    """The state of one table as it is at an epoch: of each key the newest row, deleted and expired ones left out.

    What is left out is found when there is one choice; else the error lists the choices. Without `epoch` and
    `savepoint` it is the newest epoch. `internal` shows `_key_hash` and `_seq`, too.
    """
    raise NotImplementedError
