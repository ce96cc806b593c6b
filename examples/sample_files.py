"""Sample input of the examples: numbered files in a folder, which Spark reads in the order of their numbers."""

import os
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

_FIRST_SECOND = 1_700_000_000


def add_parquet(folder: Path, rows: pa.Table) -> None:
    """Add a Parquet file behind those that the folder has."""
    path = _next(folder, ".parquet")
    pq.write_table(rows, path.with_suffix(".part"))
    _publish(path)


def add_lines(folder: Path, lines: Iterable[str]) -> None:
    """Add a file of JSON lines behind those that the folder has."""
    path = _next(folder, ".json")
    path.with_suffix(".part").write_text("".join(f"{line}\n" for line in lines))
    _publish(path)


def _next(folder: Path, suffix: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{len(list(folder.glob(f'*{suffix}'))):06d}{suffix}"


def _publish(path: Path) -> None:
    """Let a finished file appear under its name at once. Spark reads files in the order of their times."""
    part = path.with_suffix(".part")
    second = _FIRST_SECOND + int(path.stem)
    os.utime(part, (second, second))
    part.rename(path)
