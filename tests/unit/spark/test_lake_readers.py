"""Readers of lakehouse tables as streams, without Spark: which files a batch has, and what ends a stream."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lake_tables import ICEBERG_TABLE, Lake
from published import publication

from statebed.errors import InputError, MissingFileError
from statebed.sinks.lake import folder_catalog, lake_sink
from statebed.spark.api.delta_source import DeltaVersionReader
from statebed.spark.api.iceberg_source import IcebergSnapshotReader, TableAddress
from statebed.spark.api.lake_source import LakeStreamReader, spark_columns, starting_option

COLUMNS = pa.schema([("k", pa.string()), ("n", pa.int64())])
FORMATS = pytest.mark.parametrize("kind", ["delta", "iceberg"])
Opened = tuple[Lake, lake_sink.LakeSink, LakeStreamReader]


def rows(*values: tuple[str, int]) -> pa.Table:
    return pa.table([list(column) for column in zip(*values, strict=True)], schema=COLUMNS)


def reader_of(lake: Lake, *, starting: str = "all") -> LakeStreamReader:
    columns = spark_columns(COLUMNS)
    if lake.format == "delta":
        return DeltaVersionReader(str(lake.path), {}, columns, starting=starting)
    return IcebergSnapshotReader(
        TableAddress(ICEBERG_TABLE, folder_catalog(str(lake.path))), columns, starting=starting
    )


def opened(kind: str, path: Path) -> Opened:
    """Return a table with one epoch, its sink, and a reader."""
    lake = Lake(kind, path / "table")
    sink = lake.sink(COLUMNS)
    sink.open(1)
    sink.publish(publication(1, 2, rows(("a", 1))))
    return lake, sink, reader_of(lake)


def batch(reader: LakeStreamReader, start: Any, end: Any) -> list[tuple[Any, ...]]:
    """Return the rows of a batch."""
    batches = [part for partition in reader.partitions(start, end) for part in reader.read(partition)]
    return sorted(tuple(row.values()) for part in batches for row in part.to_pylist())


@FORMATS
def test_batches_have_the_rows_of_the_newest_version_and_then_those_that_are_appended(
    kind: str, tmp_path: Path
) -> None:
    _, sink, reader = opened(kind, tmp_path)
    first = reader.latestOffset()
    sink.publish(publication(1, 3, rows(("b", 2)), rows(("b", 3))))
    sink.publish(publication(1, 4, rows(("c", 4))))
    last = reader.latestOffset()
    assert batch(reader, reader.initialOffset(), first) == [("a", 1)]
    assert batch(reader, first, last) == [("b", 2), ("b", 3), ("c", 4)]
    assert batch(reader, reader.initialOffset(), last) == [("a", 1), ("b", 2), ("b", 3), ("c", 4)]
    assert batch(reader, last, last) == []


@FORMATS
def test_a_stream_can_start_behind_what_is_there(kind: str, tmp_path: Path) -> None:
    lake, sink, reader = opened(kind, tmp_path)
    known = reader.latestOffset()
    sink.publish(publication(1, 3, rows(("b", 2))))
    latest = reader_of(lake, starting="latest")
    assert latest.initialOffset() == reader.latestOffset()
    after = reader_of(lake, starting=str(known[reader.version_name]))
    assert after.initialOffset() == known
    assert batch(after, after.initialOffset(), after.latestOffset()) == [("b", 2)]


@FORMATS
def test_files_that_only_hold_the_same_rows_again_are_no_rows_of_a_stream(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, sink, reader = opened(kind, tmp_path)
    first = reader.latestOffset()
    monkeypatch.setattr(lake_sink, "COMPACT_EVERY", 1)
    monkeypatch.setattr(lake_sink, "COMPACTED_FILES", 2)
    sink.publish(publication(1, 3, rows(("b", 2))))  # merges the two files
    last = reader.latestOffset()
    assert len(reader.partitions(reader.initialOffset(), last)) == 1
    assert batch(reader, first, last) == [("b", 2)]


def test_replace_snapshots_of_other_engines_are_skipped(tmp_path: Path) -> None:
    lake, _, reader = opened("iceberg", tmp_path)
    first = reader.latestOffset()
    lake.table.overwrite(rows(("a", 1)))
    _edit_metadata(lake, lambda text: text.replace('"operation":"delete"', '"operation":"replace"'))
    _edit_metadata(lake, lambda text: text.replace('"operation":"append"', '"operation":"replace"'))
    lake.table.append(rows(("c", 3)))
    assert batch(reader, first, reader.latestOffset()) == [("c", 3)]


@FORMATS
def test_a_version_that_changes_rows_ends_the_stream_and_is_named(kind: str, tmp_path: Path) -> None:
    lake, _, reader = opened(kind, tmp_path)
    first = reader.latestOffset()
    lake.table.delete("k = 'a'")
    last = reader.latestOffset()
    with pytest.raises(InputError, match=f"{reader.version_name} {last[reader.version_name]} .*updates or deletes"):
        reader.partitions(first, last)


def test_an_iceberg_table_that_was_rolled_back_or_whose_snapshots_were_expired_ends_the_stream(tmp_path: Path) -> None:
    lake, sink, reader = opened("iceberg", tmp_path)
    first = reader.latestOffset()
    sink.publish(publication(1, 3, rows(("b", 2))))
    second = reader.latestOffset()
    with pytest.raises(InputError, match="rolled back or replaced"):
        reader.partitions(second, first)
    with pytest.raises(InputError, match="rolled back or replaced"):
        reader.partitions(second, {"snapshot": -1})
    sink.publish(publication(1, 4, rows(("c", 3))))
    lake.table.maintenance.expire_snapshots().by_id(second["snapshot"]).commit()
    with pytest.raises(InputError, match="the snapshots in between were expired"):
        reader.partitions(first, reader.latestOffset())
    with pytest.raises(MissingFileError, match=f"snapshot {second['snapshot']} .*was expired"):
        reader.partitions(reader.initialOffset(), second)


def test_rows_that_delete_files_have_removed_are_not_in_the_first_batch(tmp_path: Path) -> None:
    lake, sink, reader = opened("iceberg", tmp_path)
    sink.publish(publication(1, 3, rows(("b", 2), ("c", 3))))
    lake.table.delete("k = 'b'")  # copy-on-write: the files of the newest snapshot have no deleted rows
    assert batch(reader, reader.initialOffset(), reader.latestOffset()) == [("a", 1), ("c", 3)]


def test_columns_that_were_added_while_the_stream_runs_are_left_out(tmp_path: Path) -> None:
    lake, _, reader = opened("iceberg", tmp_path)
    first = reader.latestOffset()
    with lake.table.update_schema() as update:
        update.union_by_name(pa.schema([*COLUMNS, ("extra", pa.string())]))
    lake.table.append(rows(("b", 2)).append_column("extra", pa.array(["x"])))
    assert batch(reader, first, reader.latestOffset()) == [("b", 2)]


def test_a_start_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InputError, match="'all', 'latest' or a snapshot, got 'newest'"):
        starting_option("newest", version="snapshot", where="here")
    assert starting_option(7, version="version", where="here") == "7"


def _edit_metadata(lake: Lake, edit: Callable[[str], str]) -> None:
    """Change the newest metadata file, to what pyiceberg cannot write itself."""
    path = Path(lake.table.metadata_location.removeprefix("file://"))
    path.write_text(edit(path.read_text()))
