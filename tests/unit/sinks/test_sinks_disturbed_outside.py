"""Sinks that somebody else disturbed between runs, or that failed halfway: nothing is lost without an error."""

import sys
from pathlib import Path
from shutil import rmtree

import pyarrow as pa
import pytest
from published import publication
from unit.sinks import publishing

from statebed.checkpoint import Publisher
from statebed.errors import BrokenLogError, MissingFileError, SinkError, SinkStartError
from statebed.protocol import SinkPosition
from statebed.sinks import FunctionSink, MemorySink, ParquetTableSink, read_table, table_files
from statebed.sinks.manifest.table_state import TAIL_ENTRIES
from statebed.storage import MemoryStore

ROWS = pa.table([["a"], [1], [1]], schema=publishing.SCHEMA)


def parquet_sink(path: Path) -> ParquetTableSink:
    return ParquetTableSink(sink_id=publishing.SINK, path=str(path), job_id=publishing.JOB, schema=publishing.SCHEMA)


def files_of(path: Path) -> set[str]:
    return {str(file) for file in path.glob("epoch=*/*.parquet")}


def test_a_parquet_table_that_is_emptied_after_its_manifest_was_deleted_has_no_files_left(tmp_path: Path) -> None:
    store, path = MemoryStore(), tmp_path / "out"
    run = publishing.open_run(store)
    publisher = Publisher(run, [parquet_sink(path)])
    publisher.open()
    for _ in range(4):
        publishing.commit(run)
        publisher.publish_pending()
    rmtree(path / "_statebed")
    with pytest.raises(SinkStartError, match="holds nothing at its target"):
        Publisher(publishing.open_run(store), [parquet_sink(path)]).open()
    sink = parquet_sink(path)
    assert sink.open(20) is None
    assert files_of(path)
    sink.clear(20)
    assert not files_of(path)  # readers that list the folder would see old rows beside those of the rebuild
    sink.publish(publication(20, 21, ROWS))
    assert read_table(str(path)).num_rows == ROWS.num_rows
    assert files_of(path) == set(table_files(str(path)))


@pytest.mark.parametrize("epochs", [3, TAIL_ENTRIES - 1], ids=["entry", "base"])
@pytest.mark.parametrize("lost", ["folder", "manifest", "newest entry"])
def test_a_parquet_table_that_is_deleted_while_the_job_runs_stops_it(tmp_path: Path, lost: str, epochs: int) -> None:
    """Readers that list the folder saw the rows from then on; the job looked fine until its next start."""
    path = tmp_path / "out"
    sink = parquet_sink(path)
    sink.open(1)
    for epoch in range(2, 2 + epochs):
        sink.publish(publication(1, epoch, ROWS))
    entries = sorted((path / "_statebed").glob("*.json"))
    if lost == "newest entry":
        entries[-1].unlink()
    else:
        rmtree(path if lost == "folder" else path / "_statebed")
    error, text = (
        (BrokenLogError, f"entry {len(entries)} of") if lost == "newest entry" else (SinkError, "no longer exists")
    )
    for _ in range(2):
        with pytest.raises(error, match=text):
            sink.publish(publication(1, 2 + epochs, ROWS))
    # The next start finds what others left, and publishes or refuses what is missing.
    before = parquet_sink(path).peek()
    assert before == (SinkPosition(run=1, epoch=epochs) if lost == "newest entry" else None)


def test_foreign_files_in_a_parquet_table_are_left_alone_and_not_read(tmp_path: Path) -> None:
    store, path = MemoryStore(), tmp_path / "out"
    run = publishing.open_run(store)
    publisher = Publisher(run, [parquet_sink(path)])
    publisher.open()
    publishing.commit(run)
    publisher.publish_pending()
    before = read_table(str(path))
    foreign = [path / "notes.txt", path / "_statebed" / ".DS_Store", path / "epoch=000000000002" / "foreign.parquet"]
    for file in foreign:
        file.write_bytes(b"x")
    Publisher(publishing.open_run(store), [parquet_sink(path)]).open()
    assert read_table(str(path)).equals(before)
    assert all(file.exists() for file in foreign)


def test_a_function_that_exits_is_an_error_of_its_sink() -> None:
    """The thread that publishes ended without a word, and the job looked as if it ran."""
    sink = FunctionSink(sink_id=publishing.SINK, function=lambda _rows, _epoch: sys.exit(7), to_frame=lambda rows: rows)
    with pytest.raises(SinkError, match="raised SystemExit: 7"):
        sink.publish(publication(1, 2, ROWS))


def test_a_function_that_raises_halfway_gets_the_whole_epoch_again_and_later_ones_wait() -> None:
    store = MemoryStore()
    calls: list[tuple[int, int]] = []

    def deliver(rows: pa.Table, epoch: int) -> None:
        calls.append((epoch, rows.num_rows))
        if len(calls) == 2:
            raise ConnectionError("connection lost after half of the rows")

    def sink() -> FunctionSink:
        return FunctionSink(sink_id=publishing.SINK, function=deliver, to_frame=lambda rows: rows)

    run = publishing.open_run(store)
    publisher = Publisher(run, [sink()])
    publisher.open()
    for _ in range(3):
        publishing.commit(run)
    with pytest.raises(SinkError, match="connection lost after half of the rows") as failed:
        publisher.publish_pending()
    assert "published first" in failed.value.fix
    Publisher(publishing.open_run(store), [sink()]).open()
    assert [epoch for epoch, _ in calls] == [2, 3, 3, 4]
    assert calls[1] == calls[2]


def test_an_outbox_file_deleted_before_its_publication_is_named_and_nothing_of_the_epoch_is_written(
    tmp_path: Path,
) -> None:
    store, path = MemoryStore(), tmp_path / "out"
    run = publishing.open_run(store)
    publisher = Publisher(run, [parquet_sink(path)])
    publisher.open()
    publishing.commit(run)
    publisher.publish_pending()
    before = read_table(str(path))
    publishing.commit(run)
    deleted = run.head.outbox[0].path
    run.store.delete(deleted)
    for publish in (publisher.publish_pending, lambda: publishing.open_run(store)):
        with pytest.raises(MissingFileError) as failed:
            publish()
        assert failed.value.where.endswith(deleted)
        assert "statebed repair" in failed.value.fix
    assert read_table(str(path)).equals(before)


def test_a_memory_sink_starts_empty_with_its_process_and_gets_what_is_new() -> None:
    store = MemoryStore()
    run = publishing.open_run(store)
    publisher = Publisher(run, [MemorySink(publishing.SINK)])
    publisher.open()
    publishing.commit(run)
    publisher.publish_pending()
    run, sink = publishing.open_run(store), MemorySink(publishing.SINK)
    publisher = Publisher(run, [sink])
    publisher.open()
    publishing.commit(run)
    publisher.publish_pending()
    assert list(sink.epochs) == [run.head.epoch]
