"""P7 on real files: a flipped byte of a record, a metadata object or a data file is detected, and the file is named."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from statebed.checkpoint import ParquetBackend
from statebed.errors import CorruptObjectError, CorruptRecordError, FormatError, MissingFileError
from statebed.format.segment import decode_segment
from statebed.format.segment_reader import SegmentReader
from statebed.storage import LocalStore, ScopedStore

EPOCH = 3


@pytest.fixture
def copy(written: Any, tmp_path: Path) -> Path:
    shutil.copytree(written.folder, tmp_path / "rides")
    return tmp_path


def read_everything(root: Path) -> int:
    """Read all that the record names, as a whole and in parts; the number of rows in files."""
    store = LocalStore(str(root))
    backend, job = ParquetBackend(store), ScopedStore(store, "rides")
    record = backend.load_checkpoint_metadata("rides", EPOCH)
    rows = 0
    for operator in record.operators:
        metadata = backend.load_operator_metadata("rides", operator.operator_id, EPOCH)
        assert metadata is not None
        for table in metadata.tables.values():
            for subtask in table.subtasks.values():
                for file in subtask.files:
                    whole = decode_segment(job.get(file.path), file)
                    assert SegmentReader(file, job.get_range).read().num_rows == whole.num_rows
                    rows += whole.num_rows
    return rows


def named_files(root: Path, pattern: str) -> list[Path]:
    return sorted((root / "rides").glob(pattern))


def positions(size: int, sample: int) -> list[int]:
    if size <= sample:
        return list(range(size))
    return sorted(np.random.default_rng(size).choice(size, sample, replace=False).tolist())


@pytest.mark.parametrize(
    ("pattern", "sample", "error"),
    [
        (f"checkpoints/{EPOCH:012d}/checkpoint.metadata", 10_000, CorruptRecordError),
        (f"checkpoints/{EPOCH:012d}/operator-*.metadata", 120, CorruptObjectError),
        ("checkpoints/*/data/*.parquet", 40, CorruptObjectError),
    ],
)
def test_p7_a_flipped_byte_on_disk_is_detected_and_the_file_is_named(
    copy: Path, pattern: str, sample: int, error: type[FormatError]
) -> None:
    assert read_everything(copy) > 1000
    victims = named_files(copy, pattern)
    assert victims
    for victim in victims:
        intact = victim.read_bytes()
        for at in positions(len(intact), sample):
            victim.write_bytes(intact[:at] + bytes([intact[at] ^ (1 << at % 8)]) + intact[at + 1 :])
            with pytest.raises(error) as caught:
                read_everything(copy)
            assert victim.name in caught.value.where
        victim.write_bytes(intact)
    assert read_everything(copy) > 1000


def test_p7_a_missing_metadata_object_is_detected_and_named(copy: Path) -> None:
    for victim in named_files(copy, f"checkpoints/{EPOCH:012d}/operator-*.metadata"):
        intact = victim.read_bytes()
        victim.unlink()
        with pytest.raises(MissingFileError) as caught:
            read_everything(copy)
        assert victim.name in caught.value.where
        victim.write_bytes(intact)


def test_p7_a_missing_data_file_is_found_before_anything_is_loaded(copy: Path) -> None:
    backend = ParquetBackend(LocalStore(str(copy)))
    record = backend.load_checkpoint_metadata("rides", EPOCH)
    backend.prepare_checkpoint_load(record)
    victim = named_files(copy, "checkpoints/*/data/*.parquet")[0]
    victim.unlink()
    with pytest.raises(MissingFileError) as caught:
        backend.prepare_checkpoint_load(record)
    assert victim.name in caught.value.where
