"""Lakehouse tables for tests of sinks: how they are made, and how other readers find them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pyarrow as pa

from statebed.format.stream_schema import Changes, Output
from statebed.sinks.lake import LakeSink, folder_catalog
from statebed.sinks.registry import KINDS, SinkRequest

ICEBERG_TABLE = "lake.results"


@dataclass(frozen=True)
class Lake:
    """A place for one table of a format, "delta" or "iceberg"."""

    format: str
    path: Path

    def sink(
        self,
        columns: pa.Schema,
        *,
        key: Sequence[str] = (),
        changes: bool = False,
        sink_id: str = "out",
        job_id: str = "rides",
        **options: Any,
    ) -> LakeSink:
        """Build a sink of the table."""
        wanted = SinkRequest(
            sink_id=sink_id,
            job_id=job_id,
            output=Output(columns, Changes.CHANGELOG if changes else Changes.APPEND),
            key=tuple(key),
            path=str(self.path),
            options=options | ({"table": ICEBERG_TABLE} if self.format == "iceberg" else {}),
            where="here",
        )
        made = KINDS[self.format].make(wanted)
        assert isinstance(made, LakeSink)
        return made

    @property
    def table(self) -> Any:
        """The table as the library of its format loads it."""
        if self.format == "delta":
            return deltalake.DeltaTable(str(self.path))
        return folder_catalog(str(self.path)).load().load_table(ICEBERG_TABLE)

    def read(self) -> pa.Table:
        """Read the table with the library of its format; it has no rows if it does not exist."""
        if not any((self.path / name).exists() for name in ("_delta_log", "catalog.db")):
            return pa.table({})
        return self.table.to_pyarrow_table() if self.format == "delta" else self.table.scan().to_arrow()

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted((tuple(row.values()) for row in self.read().to_pylist()), key=repr)

    def scan(self) -> pl.LazyFrame:
        """Scan the table with Polars."""
        return pl.scan_delta(str(self.path)) if self.format == "delta" else pl.scan_iceberg(self.table)

    def listed(self) -> set[Path]:
        """Data files of the newest version."""
        if self.format == "delta":
            return set(map(Path, self.table.file_uris()))
        return {Path(task.file.file_path.removeprefix("file://")) for task in self.table.scan().plan_files()}

    def stored(self) -> set[Path]:
        """Data files that the sink has ever written."""
        return set(self.path.rglob("*part-*.parquet"))

    def append(self, rows: pa.Table) -> None:
        """Append rows as another program does."""
        if self.format == "delta":
            deltalake.write_deltalake(str(self.path), rows, mode="append")
        else:
            self.table.append(rows)


def lake_of(kind: str, path: Path) -> Lake:
    """Return the place of a kind, such as "delta" or "delta by key"."""
    return Lake(kind.partition(" ")[0], path)


def lake_sink(kind: str, path: Path, *, job_id: str, sink_id: str, columns: pa.Schema) -> LakeSink:
    """Build the sink of a changelog: "delta" appends its rows, "delta by key" keeps one row per `k`."""
    key = ("k",) if kind.endswith("by key") else ()
    return lake_of(kind, path).sink(columns, key=key, changes=True, job_id=job_id, sink_id=sink_id)
