"""Reads the state of an epoch with nothing but protobuf and DuckDB, following docs/format.md step by step.

    python independent_reader.py JOB_FOLDER EPOCH        (0: the head)

Needs `checkpoint_pb2`, compiled from the schema file, on its path. Neither statebed nor pyarrow can be imported here.
Prints JSON: {"epoch": n, "tables": {"operator/table": [[column, ...], [row, ...], ...]}}.
"""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CASTAGNOLI = 0x82F63B78


class _Forbid:
    """Makes the imports that this program must do without fail."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.split(".", 1)[0] in {"statebed", "pyarrow", "pandas", "polars"}:
            raise ModuleNotFoundError(f"{name} must not be needed here")


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (CASTAGNOLI if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def open_sealed(kind: Any, data: bytes) -> Any:
    if data[-5] != 0x7D or crc32c(data[:-5]) != int.from_bytes(data[-4:], "little"):
        raise SystemExit("a sealed message is damaged")
    message = kind.FromString(data)
    if message.format_version != 1:
        raise SystemExit(f"format version {message.format_version}")
    return message


def fetch(folder: Path, entry: Any) -> bytes:
    data: bytes = (folder / entry.path).read_bytes()
    if len(data) != entry.size or crc32c(data) != entry.crc32c:
        raise SystemExit(f"{entry.path} is damaged")
    return data


def find_record(pb: Any, folder: Path, epoch: int) -> Any:
    numbers = [int(path.parent.name) for path in folder.glob("checkpoints/*/checkpoint.metadata")]
    number = epoch or max(numbers)
    return open_sealed(pb.CheckpointMetadata, (folder / f"checkpoints/{number:012d}/checkpoint.metadata").read_bytes())


def inside(column: str, owned: Any) -> str:
    return f"{column} BETWEEN {owned.first}::UBIGINT AND {owned.last}::UBIGINT"


def hidden_by(tombstone: Any) -> str:
    kind = tombstone.WhichOneof("operation")
    if kind != "delete_time_range":
        raise SystemExit(f"a tombstone of the kind {kind} needs an Arrow library")
    span = tombstone.delete_time_range
    return (
        f"{inside('_key_hash', tombstone.owned)} AND _seq <= {tombstone.sequence}"
        f" AND epoch_us(_time) >= {span.start_us} AND epoch_us(_time) < {span.end_us}"
    )


def subtask_queries(folder: Path, subtask: Any) -> Iterator[str]:
    for file in subtask.files:
        fetch(folder, file)
        conditions = [inside("_key_hash", file.owned), *(f"NOT ({hidden_by(one)})" for one in subtask.tombstones)]
        yield f"SELECT * FROM read_parquet('{folder / file.path}') WHERE {' AND '.join(conditions)}"


def newest_only(table: Any, query: str) -> str:
    """Keyed and global keyed tables hold one row per key, generational ones one per key and time: the one with the
    highest sequence.
    """
    config = table.config
    kind = config.WhichOneof("kind")
    if kind == "time_keyed" and not config.time_keyed.generational:
        return query
    names = {
        "global_keyed": ["key"],
        "keyed": config.keyed.key_columns,
        "time_keyed": [*config.time_keyed.key_columns, "_time"],
    }
    keys = ", ".join(f'"{name}"' for name in names[kind])
    return f"SELECT * FROM ({query}) QUALIFY row_number() OVER (PARTITION BY {keys} ORDER BY _seq DESC) = 1"  # as above


def without_deleted(columns: list[str], rows: list[Any]) -> list[Any]:
    """A row that says so is a deletion: its key has no state."""
    if "_deleted" not in columns:
        return rows
    return [row for row in rows if not row[columns.index("_deleted")]]


def main(folder: Path, epoch: int) -> None:
    sys.meta_path.insert(0, _Forbid())
    pb = importlib.import_module("checkpoint_pb2")
    duckdb = importlib.import_module("duckdb")
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    record = find_record(pb, folder, epoch)
    queries: dict[str, list[str]] = {}
    for operator in record.operators:
        for reference in operator.subtasks:
            metadata = open_sealed(pb.OperatorCheckpointMetadata, fetch(folder, reference))
            for name, table in metadata.tables.items():
                for subtask in table.subtasks.values():
                    union = " UNION ALL BY NAME ".join(subtask_queries(folder, subtask))
                    if union:
                        queries.setdefault(f"{operator.operator_id}/{name}", []).append(newest_only(table, union))
    tables = {}
    for name, parts in queries.items():
        result = connection.execute(" UNION ALL BY NAME ".join(f"({part})" for part in parts))
        columns = [column[0] for column in result.description]
        rows = without_deleted(columns, result.fetchall())
        tables[name] = [columns, *([str(value) if value is not None else None for value in row] for row in rows)]
    sys.stdout.write(json.dumps({"epoch": record.epoch, "tables": tables}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
