"""Bytes of state per batch, from the files that each side leaves."""

from pathlib import Path

from bench.spark.cases import Side
from bench.spark.checkpoint_bytes import checkpoint_bytes


def write(folder: Path, sizes: dict[str, int]) -> None:
    for name, size in sizes.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)


def test_deltas_metadata_and_records_of_epochs_with_a_batch_count(tmp_path: Path) -> None:
    job = "state/bench/checkpoints"
    write(
        tmp_path,
        {
            f"{job}/000000000001/checkpoint.metadata": 1,
            f"{job}/000000000002/checkpoint.metadata": 10,
            f"{job}/000000000002/data/totals-groups-0.ab.parquet": 200,
            f"{job}/000000000002/outbox/totals-0.ab.parquet": 5_000,
            f"{job}/000000000002/published-bench": 7_000,
            f"{job}/000000000003/operator-totals-0.cd.metadata": 30,
            f"{job}/000000000004/checkpoint.metadata": 9,
            "state/bench/compactions/1/totals-groups-0.ab.parquet": 8_000,
        },
    )
    assert checkpoint_bytes(Side.OURS, tmp_path, 2) == [210, 30]


def test_changelogs_and_deltas_of_all_stores_of_a_query_count(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "checkpoint/state/0/0/1.changelog": 5,
            "checkpoint/state/0/1/1.changelog": 6,
            "checkpoint/state/0/0/2_8c2b.changelog": 7,
            "checkpoint/state/0/0/2.zip": 1_000,
            "checkpoint/state/0/0/left-keyToNumValues/1.delta": 20,
            "checkpoint/state/0/0/right-keyToNumValues/1.delta": 21,
            "checkpoint/state/0/0/1.snapshot": 2_000,
            "checkpoint/offsets/1": 3,
        },
    )
    assert checkpoint_bytes(Side.ROCKSDB, tmp_path, 2) == [11, 7]
    assert checkpoint_bytes(Side.HDFS, tmp_path, 2) == [41]
