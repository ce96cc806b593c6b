"""Equal rows that fill several files: their bytes are the same, and they are several files all the same."""

import datetime as dt
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from unit.state.table_cluster import Cluster

from statebed.format import checkpoint_pb2 as pb
from statebed.state import CompactionMode, ManagerOptions, StoredEdit, Tiers, timestamp_table_config
from statebed.state.memory.controller import MemoryController
from statebed.storage import MemoryStore

SCHEMA = pa.schema([("rider", pa.int64()), ("fare", pa.int64())])
TRIPS = timestamp_table_config("trips", "", dt.timedelta(days=1), False, SCHEMA, keys=["rider"])
ROWS = 20_000
OFF = ManagerOptions(compaction=CompactionMode.OFF, timeout_seconds=60)


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[Tiers]:
    made = Tiers(MemoryController((1 << 20) // 3), folder=tmp_path)
    yield made
    made.close()


def filled(tiers: Tiers) -> Cluster:
    """A job whose first epoch has many equal trips, and tombstones that make their files due."""
    job = Cluster(1, {"trips": TRIPS}, store=MemoryStore(), tiers=tiers, options=OFF)
    times = pa.array([1] * ROWS, pa.timestamp("us", "UTC"))
    view = job.managers[0].get_time_keyed("trips")
    view.append(pa.table({"rider": pa.array([1] * ROWS), "_time": times, "fare": pa.array([7] * ROWS)}))
    job.commit()
    for fare in range(100, 170):
        view.delete_values(pa.table({"rider": [1]}), pa.table({"fare": [fare]}))
    job.commit()
    return job


def files(job: Cluster) -> list[pb.FileEntry]:
    return list(job.managers[0].get_time_keyed("trips").metadata().files)


def check(job: Cluster) -> None:
    """All rows are there, and each file has a name of its own."""
    assert job.managers[0].get_time_keyed("trips").read().num_rows == ROWS
    listed = files(job)
    assert len({file.path for file in listed}) == len(listed) > 3
    assert sum(file.rows for file in listed) == ROWS


def test_p1_equal_files_of_a_checkpoint_are_kept_apart_and_merged_one_by_one(tiers: Tiers) -> None:
    job = filled(tiers)
    check(job)
    assert len({file.crc32c for file in files(job)}) < len(files(job)), "no two files have the same bytes"
    for _ in range(3):
        view = job.managers[0].get_time_keyed("trips")
        merge = view.plan_compaction(max_bytes=sum(sorted(file.size for file in files(job))[:2]))
        assert merge is not None
        view.offer_edit(merge.run())
        job.commit()
        check(job)
        job.restart(1)
        check(job)
    job.close()


def test_p1_what_is_merged_apart_gets_no_name_that_a_live_file_has(tiers: Tiers) -> None:
    job = filled(tiers)
    outputs: list[str] = []
    for _ in range(3):
        most = sum(sorted(file.size for file in files(job))[:2])
        (edit,) = job.managers[0].compact_to_edits(run=1, max_bytes=most)
        outputs += [file.path for file in edit.outputs]
        job.more["edits"] = (edit.to_bytes(),)
        job.restart(1)
        job.commit()
        check(job)
    assert len(set(outputs)) == len(outputs)
    assert len({path.rsplit(".", 2)[1] for path in outputs}) < len(outputs), "no two outputs have the same bytes"
    job.close()


def test_an_edit_whose_output_is_live_already_has_no_part_in_the_files(tiers: Tiers) -> None:
    job = filled(tiers)
    first, second, *others = files(job)
    edit = StoredEdit("trips", (first,), (), (second,))
    assert edit.applied_to([first, second, *others], first.owned) is None
    assert edit.applied_to([first, *others], first.owned) == (*others, second)
    job.close()
