"""Another parallelism after a restart: the same results, and each subtask reads little more than what it now owns."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import statebed as sb
from statebed.checkpoint import CheckpointLog
from statebed.checkpoint.references import References
from statebed.format import names, segment_writer
from statebed.spark.epoch import epoch_levels as stages_module
from statebed.spark.epoch.level_task import StageFunction
from statebed.spark.plan.pieces import Piece
from statebed.storage import LocalStore, ScopedStore, get_storage_provider

KEYS = 40_000
ROW_GROUP_ROWS = 1 << 10
"""Small ones, in the same proportion to this small state as the usual ones are to a large one."""


class CountingStage(StageFunction):
    """Writes down how many bytes of data files its subtask read."""

    def of_pieces(self, index: int, arrivals: Iterator[Piece]) -> Iterator[Piece]:
        segment_writer.ROW_GROUP_ROWS = ROW_GROUP_ROWS
        whole, part = LocalStore.get, LocalStore.get_range
        read = 0
        own = names.epoch_folder(self.works[0].task.epoch)

        def counted(path: str, data: bytes) -> bytes:
            nonlocal read
            # What the epoch itself wrote is read back to be verified.
            read += len(data) if path.endswith(".parquet") and own not in path else 0
            return data

        with (
            mock.patch.object(LocalStore, "get", lambda store, path: counted(path, whole(store, path))),
            mock.patch.object(LocalStore, "get_range", lambda store, path, *at: counted(path, part(store, path, *at))),
        ):
            yield from super().of_pieces(index, arrivals)
        folder = Path(self.state_url).parent / "reads"
        folder.mkdir(exist_ok=True)
        count = {"epoch": self.works[0].task.epoch, "read": read}
        (folder / f"{count['epoch']}-{index}.json").write_text(json.dumps(count))


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch, by_value: None) -> None:
    del by_value
    monkeypatch.setattr(stages_module, "StageFunction", CountingStage)


def test_p6_from_2_to_7_to_3_subtasks_the_results_are_the_same_and_bytes_read_are_near_the_bytes_owned(
    spark: SparkSession, tmp_path: Path, counting: None
) -> None:
    ratios: dict[int, float] = {}
    owned = 0
    for number, parallelism in enumerate([2, 7, 3]):
        add_file(tmp_path, number)
        query = job(spark, tmp_path, parallelism=parallelism, cache=tmp_path / f"cache-{number}")
        assert query.await_termination(250)
        first = query.recent_progress[0]
        assert first.rows_in == KEYS
        if number:
            ratios[parallelism] = read_in(tmp_path, first.epoch) / owned
        owned = live_bytes(tmp_path)
        assert results(tmp_path) == expected(tmp_path)
    # An owner's edge lies inside a row group, which both sides read; footers come on top.
    assert all(0.9 < ratio < 1.5 for ratio in ratios.values()), ratios


def add_file(folder: Path, number: int) -> None:
    """Every key once, in an order of its own."""
    keys = pa.array([(key * 7919 + number) % KEYS for key in range(KEYS)], pa.int64())
    times = pa.array([number * 60_000_000] * KEYS, pa.timestamp("us", "UTC"))
    (folder / "in").mkdir(exist_ok=True)
    rows = pa.table({"k": keys, "v": pa.array(range(KEYS), pa.int64()), "ts": times})
    pq.write_table(rows, folder / "in" / f"{number}.parquet")


def job(spark: SparkSession, folder: Path, *, parallelism: int, cache: Path) -> sb.Query:
    settings = {"cache_folder": str(cache)}
    made = sb.Job("sums", state=folder / "state", parallelism=parallelism, spark=spark, settings=settings)
    frame = spark.readStream.schema("k long, v long, ts timestamp").parquet(str(folder / "in"))
    stream = made.source(frame, name="rows", watermark=("ts", "1 minute"))
    sums = stream.key_by("k", name="sums").agg(n=sb.count(), total=sb.sum("v"), ttl="1 day")
    sums.write("parquet", path=str(folder / "out"))
    return made.start(available_now=True)


def read_in(folder: Path, epoch: int) -> int:
    """Bytes of data files that all subtasks read in the epoch."""
    counts = [json.loads(path.read_text()) for path in (folder / "reads").iterdir()]
    return sum(int(count["read"]) for count in counts if count["epoch"] == epoch)


def live_bytes(folder: Path) -> int:
    """Return the size of all data files that the head refers to, each counted once."""
    log = CheckpointLog(ScopedStore(get_storage_provider(folder / "state"), "sums"), "sums")
    head = log.recover().head
    assert head is not None
    named = References(log).of(head)
    return sum(size for path, size in named.sizes.items() if path.endswith(".parquet") and "/outbox/" not in path)


def results(folder: Path) -> list[Any]:
    query = "select k, n, total from changes group by all having sum(_weight) = 1 order by k"
    return _answer(query, changes=sb.read_table(str(folder / "out")))


def expected(folder: Path) -> list[Any]:
    return _answer(
        "select k, count(*), sum(v)::bigint from rows group by k order by k", rows=pq.read_table(folder / "in")
    )


def _answer(query: str, **tables: pa.Table) -> list[Any]:
    with duckdb.connect() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        return connection.execute(query).fetchall()
