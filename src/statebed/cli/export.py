"""`statebed export`: writes rows of state to a new Parquet or CSV file, or every table to a new folder.

Rows are written as they are read, so state may be larger than memory. A file appears under its name only when it is
complete, and existing files are never replaced.
"""

import contextlib
import dataclasses
import os
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from statebed.cli import output
from statebed.cli.pinned_epoch import PinnedEpoch, open_epoch
from statebed.cli.row_output import texts
from statebed.cli.table_request import TableRequest
from statebed.errors import ExportError, InputError, StatebedError
from statebed.inspect import StateTable
from statebed.present import units

PARQUET, CSV = ".parquet", ".csv"
ROWS_OF_A_GROUP = 128 * 1024


@dataclasses.dataclass(frozen=True)
class ExportedFile:
    """One exported file."""

    path: Path
    operator: str
    table: str
    epoch: int
    rows: int
    bytes: int


def export(request: TableRequest, target: Path, *, suffix: str | None, as_json: bool) -> None:
    """Write the requested rows to `target` and print what was written."""
    named = target.suffix if target.suffix in {PARQUET, CSV} else None
    if named and suffix and named != suffix:
        raise InputError(
            f"the file name ends in {named}, but the format is {suffix[1:]}",
            where=str(target),
            fix="make the name and the format match",
        )
    _check_new(target)
    written = [_write(request.read(), target)] if named else _write_folder(request, target, suffix or PARQUET)
    if as_json:
        output.print_json([{**dataclasses.asdict(file), "path": str(file.path)} for file in written])
        return
    for exported in written:
        size, table = units.size(exported.bytes), f"{exported.operator}.{exported.table}"
        output.say(f"{exported.path}: {exported.rows:,} rows of {table} at epoch {exported.epoch}, {size}")


def _write_folder(request: TableRequest, folder: Path, suffix: str) -> list[ExportedFile]:
    """Write every requested table at one epoch: folder/operator.table.parquet."""
    moment = open_epoch(request.state, request.job, epoch=request.epoch, savepoint=request.savepoint)
    moment = moment.only(request.operator, request.table)
    if len(moment.tables) > 1 and request.is_narrow:
        tables = ", ".join(f"{operator}.{table}" for operator, table in moment.tables)
        raise InputError(
            f"keys, times, columns and conditions apply to one table, but there are several: {tables}",
            fix="choose one with --operator and --table",
        )
    named_tables = [(name, _table_of(request, moment, *name)) for name in moment.tables]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_write(folder, error) from error
    return [_write(table, folder / f"{operator}.{name}{suffix}") for (operator, name), table in named_tables]


def _table_of(request: TableRequest, moment: PinnedEpoch, operator: str, table: str) -> StateTable:
    epoch = moment.record.epoch if moment.savepoint is None else None
    return dataclasses.replace(request, job=moment.job, operator=operator, table=table, epoch=epoch).read()


def _check_new(target: Path) -> None:
    if target.parts and target.parts[0].endswith(":"):
        raise InputError(
            "the target of an export must be a local file or folder", where=str(target), fix="pass a local path"
        )
    try:
        exists = target.exists() and not (target.is_dir() and not any(target.iterdir()))
    except OSError as error:
        raise _cannot_write(target, error) from error
    if exists:
        raise InputError(
            "the target already exists, and existing files are never replaced",
            where=str(target),
            fix="choose another name, or remove it first",
        )


def _write(table: StateTable, target: Path) -> ExportedFile:
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write = _write_csv if target.suffix == CSV else _write_parquet
        rows = write(table.to_batches(), table.schema, part)
        os.link(part, target)  # unlike a rename, this fails if another process has created the file in the meantime
        size = target.stat().st_size
    except StatebedError:  # some are OSErrors too; errors of reading keep their own text
        raise
    except FileExistsError as error:
        raise InputError(
            "the target already exists, and existing files are never replaced",
            where=str(target),
            fix="choose another name",
        ) from error
    except OSError as error:
        raise _cannot_write(target, error) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink()
    return ExportedFile(target, table.operator, table.table, table.epoch, rows, size)


def _write_parquet(batches: Iterable[pa.RecordBatch], schema: pa.Schema, path: Path) -> int:
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        return _count(batches, lambda batch: writer.write_batch(batch, row_group_size=ROWS_OF_A_GROUP))


def _write_csv(batches: Iterable[pa.RecordBatch], schema: pa.Schema, path: Path) -> int:
    flat = pa.schema([pa.field(field.name, pa.string() if _is_unfit(field.type) else field.type) for field in schema])
    with pyarrow.csv.CSVWriter(path, flat) as writer:
        return _count(batches, lambda batch: writer.write_batch(_flattened(batch, flat)))


def _flattened(batch: pa.RecordBatch, flat: pa.Schema) -> pa.RecordBatch:
    """Convert columns that CSV cannot represent to text: nested values to JSON, binary ones to base64."""
    columns = [
        column if column.type == field.type else pa.array(texts(column), pa.string())
        for column, field in zip(batch.columns, flat, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=flat)


def _is_unfit(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _count(batches: Iterable[pa.RecordBatch], write: Callable[[pa.RecordBatch], Any]) -> int:
    rows = 0
    for batch in batches:
        write(batch)
        rows += batch.num_rows
    return rows


def _cannot_write(path: Path, error: OSError) -> ExportError:
    return ExportError(
        f"the export cannot be written: {error.strerror or error}",
        where=str(path),
        fix="choose a writable folder with enough free space",
    )
