"""Definitions of the tables of the state machine, and rows as batches: one definition after another, each of which can
read what the earlier ones stored.
"""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from model.engine_model import (
    COUNTERS,
    EXTRA_DEFAULT,
    FARES,
    PRICES,
    RETENTION_US,
    TIME_TO_LIVE_US,
    TIMED,
    TOTALS,
    VISITS,
    Row,
)

from statebed.state import TableConfig, global_table_config, keyed_table_config, timestamp_table_config

BIN_US = 7
TIMESTAMP = pa.timestamp("us", tz="UTC")


def micros(count: int) -> dt.timedelta:
    return dt.timedelta(microseconds=count)


@dataclass(frozen=True)
class Shape:
    """One definition of the tables' columns."""

    renamed: bool = False
    """The column `number` is called `amount`."""
    wide: bool = False
    """Whether the column has 64 bits instead of 32."""
    extra: bool = False
    """There is a column more, with a default."""
    reordered: bool = False

    @property
    def number(self) -> str:
        return "amount" if self.renamed else "number"

    @property
    def values(self) -> list[pa.Field]:
        fields = [pa.field(self.number, pa.int64() if self.wide else pa.int32()), pa.field("text", pa.string())]
        fields += [pa.field("extra", pa.int64())] if self.extra else []
        return fields[::-1] if self.reordered else fields

    def configs(self) -> dict[str, TableConfig]:
        schema = pa.schema([pa.field("key", pa.int64()), *self.values])
        changes: dict[str, Any] = {"renames": {self.number: "number" if self.renamed else "amount"}}
        changes["defaults"] = {"extra": EXTRA_DEFAULT} if self.extra else {}
        kept: dict[str, Any] = {"keys": ["key"], "bin_width": micros(BIN_US), **changes}
        retention = micros(RETENTION_US)
        return global_table_config(COUNTERS, "") | {
            TOTALS: keyed_table_config(TOTALS, "", ["key"], schema, **changes),
            VISITS: keyed_table_config(VISITS, "", ["key"], schema, micros(TIME_TO_LIVE_US), **changes),
            FARES: timestamp_table_config(FARES, "", retention, False, schema, **kept),
            PRICES: timestamp_table_config(PRICES, "", retention, True, schema, **kept),
        }

    def batch(self, table: str, rows: Sequence[Row]) -> pa.RecordBatch:
        columns = {
            "key": pa.array([row.key for row in rows], pa.int64()),
            self.number: pa.array([row.number for row in rows], pa.int64()),
            "text": pa.array([row.text for row in rows], pa.string()),
            "extra": pa.array([row.extra for row in rows], pa.int64()),
        }
        named = {
            field.name: columns[field.name].cast(field.type) for field in [pa.field("key", pa.int64()), *self.values]
        }
        if table in TIMED:
            named["_time"] = pa.array([row.time for row in rows], pa.int64()).cast(TIMESTAMP)
        return pa.record_batch(named)

    def rows(self, table: pa.Table) -> list[Row]:
        names = table.column_names
        nothing = [None] * table.num_rows
        keys, numbers, texts = (table[name].to_pylist() for name in ("key", self.number, "text"))
        times = table["_time"].cast(pa.int64()).to_pylist() if "_time" in names else [0] * table.num_rows
        extras = table["extra"].to_pylist() if "extra" in names else nothing
        return [Row(*columns) for columns in zip(keys, times, numbers, texts, extras, strict=True)]

    def add_up(self, old: pa.Table, new: pa.Table) -> pa.Table:
        """Numbers are added, of texts and extras the greater one stays."""
        columns = {
            name: pc.add(old[name], new[name])
            if name == self.number
            else pc.max_element_wise(old[name], new[name], skip_nulls=True)
            for name in new.column_names
        }
        return pa.table(columns, schema=new.schema)
