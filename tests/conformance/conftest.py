"""A small job's state on local disk, with all that makes reading it interesting, and what a reader must find.

Epoch 2 is written by one subtask. Epoch 3 has two, which list epoch 2's file clipped to their ranges, add files of
their own, and hold a tombstone each; a keyed table has several versions of its keys.
"""

import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from statebed.arrays.key_hash import hash_table
from statebed.checkpoint import EpochDraft, ParquetBackend, Run
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.ranges import owned_range, subtask_of
from statebed.format.schema import BIN, KEY_HASH, SEQUENCE, TIME, TIMESTAMP, assign_field_ids, register_schema
from statebed.format.segment import SegmentSpec, encode_segment, segment_schema, sort_segment
from statebed.storage import ScopedStore, get_storage_provider

MINUTE = 60_000_000
SCHEMA_FILE = Path(__file__).resolve().parents[2] / "src" / "statebed" / "format" / "checkpoint.proto"
WINDOW_COLUMNS = assign_field_ids(pa.schema([("driver", pa.string()), ("trips", pa.int64()), ("total", pa.float64())]))
CARD_COLUMNS = assign_field_ids(pa.schema([("card", pa.int64()), ("amount", pa.decimal128(21, 2))]))
WINDOWS = SegmentSpec(
    "windows",
    0,
    segment_schema(WINDOW_COLUMNS, sort_order=pb.BIN_FIRST, key_columns=["driver"]),
    pb.BIN_FIRST,
    ("driver",),
)
CARDS = SegmentSpec(
    "cards",
    0,
    segment_schema(CARD_COLUMNS, sort_order=pb.HASH_FIRST, key_columns=["card"], timed=False),
    pb.HASH_FIRST,
    ("card",),
)
SCHEMAS = {spec.table: register_schema([], spec.schema)[1] for spec in (WINDOWS, CARDS)}
CONFIGS = {
    "windows": pb.TableConfig(
        name="windows", time_keyed=pb.TimeKeyedTableConfig(key_columns=["driver"], bin_us=MINUTE)
    ),
    "cards": pb.TableConfig(name="cards", keyed=pb.KeyedTableConfig(key_columns=["card"])),
}


@dataclass
class WrittenJob:
    """Location of the state, and the rows that each epoch shows, by table."""

    folder: Path
    expected: dict[int, dict[str, list[dict[str, Any]]]] = field(default_factory=dict)
    data_files: list[Path] = field(default_factory=list)
    rows_of_file: dict[Path, pa.Table] = field(default_factory=dict)


class _Writer:
    def __init__(self, root: Path) -> None:
        self.backend = ParquetBackend(get_storage_provider(str(root)))
        self.store = ScopedStore(get_storage_provider(str(root)), names.job_folder("rides"))
        self.run = Run.open(self.store, "rides")
        self.job = WrittenJob(root / "rides")

    def file(self, spec: SegmentSpec, rows: pa.Table, *, subtask: int, owned: pb.HashRange) -> pb.FileEntry:
        table = sort_segment(rows.select(spec.schema.names), spec=spec)
        segment = encode_segment(table, spec=spec)
        path = names.data_file(self.run.next_epoch, f"op_{spec.table}", spec.table, subtask, segment.digest)
        self.store.put(path, segment.data)
        self.job.data_files.append(self.job.folder / path)
        self.job.rows_of_file[self.job.folder / path] = table
        return segment.file_entry(path, owned=owned)

    def operator(self, name: str, parts: list[tuple[list[pb.FileEntry], list[pb.Tombstone]]]) -> pb.OperatorEntry:
        entry = pb.OperatorEntry(operator_id=f"op_{name}", parallelism=len(parts))
        for index, (files, tombstones) in enumerate(parts):
            owned = owned_range(index, len(parts))
            metadata = pb.OperatorCheckpointMetadata(
                job_id="rides",
                operator_id=entry.operator_id,
                epoch=self.run.next_epoch,
                subtask_index=index,
                parallelism=len(parts),
                owned=owned,
            )
            table = metadata.tables[name]
            table.config.CopyFrom(CONFIGS[name])
            table.subtasks[index].CopyFrom(
                pb.TableSubtaskCheckpointMetadata(
                    subtask_index=index, owned=owned, files=files, tombstones=tombstones, schemas=SCHEMAS[name]
                )
            )
            entry.subtasks.append(self.backend.write_operator_checkpoint_metadata(metadata))
        return entry


def windows(seed: int, sequence: int, rows: int = 400) -> pa.Table:
    generator = np.random.default_rng(seed)
    bins = generator.integers(-2, 6, rows) * MINUTE
    table = pa.table(
        {
            BIN: pa.array(bins, TIMESTAMP),
            TIME: pa.array(bins, TIMESTAMP),
            "driver": pa.array(
                [None if n == 0 else f"driver {n} ä" for n in generator.integers(0, 40, rows)], pa.string()
            ),
            "trips": generator.integers(0, 9, rows),
            "total": generator.integers(0, 1000, rows) / 8,
            SEQUENCE: np.full(rows, sequence, dtype=np.uint64),
        }
    )
    return table.append_column(KEY_HASH, pa.array(hash_table(table, ["driver"])))


def cards(numbers: range, sequence: int) -> pa.Table:
    table = pa.table(
        {
            "card": pa.array(list(numbers), pa.int64()),
            "amount": pa.array([number * sequence for number in numbers]).cast(pa.decimal128(21, 2)),
            SEQUENCE: np.full(len(numbers), sequence, dtype=np.uint64),
        }
    )
    return table.append_column(KEY_HASH, pa.array(hash_table(table, ["card"])))


def share(table: pa.Table, index: int) -> pa.Table:
    return table.filter(pa.array(subtask_of(np.array(table[KEY_HASH].to_pylist(), dtype=np.uint64), 2) == index))


def clipped(entry: pb.FileEntry, index: int) -> pb.FileEntry:
    result = pb.FileEntry()
    result.CopyFrom(entry)
    result.owned.CopyFrom(owned_range(index, 2))
    return result


def all_types() -> pa.Table:
    """Return one column of every common type, with nulls and extremes; no key hash is needed."""
    numbers = [None, 0, 1, -1, 100, -128, 127]
    base = pa.array(numbers, pa.int64())
    kinds = {
        "byte": pa.int8(),
        "short": pa.int16(),
        "int": pa.int32(),
        "long": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
    }
    columns = {name: base.cast(kind) for name, kind in kinds.items()}
    return pa.table(
        columns
        | {
            "extreme": pa.array([None, 1 << 62, -(1 << 63), (1 << 63) - 1, 0, 1, 2], pa.int64()),
            "boolean": pa.array([None, True, False, True, True, False, None]),
            "string": pa.array([None, "", "a", "ä€漢😀", "x" * 300, "\n", "'"]),
            "binary": pa.array([None, b"", b"\0", b"\xff" * 40, b"a", b"b", b"c"]),
            "date": base.cast(pa.int32()).cast(pa.date32()),
            "timestamp": pa.array([None, 0, 1, -1, 10**15, -(10**15), 5], TIMESTAMP),
            "timestamp_ntz": pa.array([None, 0, 1, -1, 10**15, -(10**15), 5], pa.timestamp("us")),
            "decimal_9": base.cast(pa.decimal128(21, 2)).cast(pa.decimal128(9, 2)),
            "decimal_38": base.cast(pa.decimal128(38, 10)),
            "list": pa.array([None, [], [1], [1, None, 3], [2], [3], [4]], pa.list_(pa.int64())),
            "struct": pa.array([None, *({"x": n, "y": str(n)} for n in range(6))]),
        }
    )


@pytest.fixture(scope="session")
def file_of_all_types(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pa.Table]:
    rows = all_types()
    columns = assign_field_ids(rows.schema)
    schema = segment_schema(columns, sort_order=pb.HASH_FIRST, key_columns=["long"], timed=False)
    spec = SegmentSpec("everything", 0, schema, pb.HASH_FIRST, ("long",))
    rows = rows.append_column(KEY_HASH, pa.array(hash_table(rows, ["long"])))
    rows = rows.append_column(SEQUENCE, pa.array(range(rows.num_rows), pa.uint64()))
    table = sort_segment(rows.select(schema.names), spec=spec)
    path = tmp_path_factory.mktemp("types") / "everything.parquet"
    path.write_bytes(encode_segment(table, spec=spec).data)
    return path, table


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> WrittenJob:
    writer = _Writer(tmp_path_factory.mktemp("state"))
    whole = owned_range(0, 1)
    old_windows, old_cards = windows(1, 1), cards(range(100), 1)
    first_windows = writer.file(WINDOWS, old_windows, subtask=0, owned=whole)
    first_cards = writer.file(CARDS, old_cards, subtask=0, owned=whole)
    record = writer.run.commit(
        EpochDraft(
            operators=[
                writer.operator("windows", [([first_windows], [])]),
                writer.operator("cards", [([first_cards], [])]),
            ]
        )
    )
    writer.job.expected[record.epoch] = {
        "op_windows/windows": old_windows.to_pylist(),
        "op_cards/cards": old_cards.to_pylist(),
    }

    # Subtask 0 has closed everything before minute 1, subtask 1 everything before minute 3; later rows stay.
    new_windows, new_cards = windows(2, 3), cards(range(50, 120), 2)
    closed_until = {0: MINUTE, 1: 3 * MINUTE}
    window_parts: list[tuple[list[pb.FileEntry], list[pb.Tombstone]]] = []
    card_parts: list[tuple[list[pb.FileEntry], list[pb.Tombstone]]] = []
    expected: list[dict[str, Any]] = []
    for index in (0, 1):
        owned = owned_range(index, 2)
        fresh = share(new_windows, index)
        tombstone = pb.Tombstone(
            sequence=2,
            owned=owned,
            delete_time_range=pb.DeleteTimeRange(start_us=-10 * MINUTE, end_us=closed_until[index]),
        )
        window_file = writer.file(WINDOWS, fresh, subtask=index, owned=owned)
        window_parts.append(([clipped(first_windows, index), window_file], [tombstone]))
        card_file = writer.file(CARDS, share(new_cards, index), subtask=index, owned=owned)
        card_parts.append(([clipped(first_cards, index), card_file], []))
        old_times = [value.timestamp() * 1e6 for value in share(old_windows, index)[TIME].to_pylist()]
        expected += [
            row
            for row, time in zip(share(old_windows, index).to_pylist(), old_times, strict=True)
            if time >= closed_until[index]
        ]
        expected += fresh.to_pylist()
    record = writer.run.commit(
        EpochDraft(operators=[writer.operator("windows", window_parts), writer.operator("cards", card_parts)])
    )
    newest = {row["card"]: row for row in [*old_cards.to_pylist(), *new_cards.to_pylist()]}
    writer.job.expected[record.epoch] = {"op_windows/windows": expected, "op_cards/cards": list(newest.values())}
    return writer.job


@pytest.fixture(scope="session")
def compiled_schema(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the code that any protobuf compiler makes from the schema file."""
    folder = tmp_path_factory.mktemp("schema")
    shutil.copy(SCHEMA_FILE, folder / "checkpoint.proto")
    arguments = [f"--proto_path={folder}", f"--python_out={folder}", "checkpoint.proto"]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *arguments], check=True, timeout=60)
    return folder
