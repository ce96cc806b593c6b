"""Memory of restores and compactions is charged while they run, and no longer."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from unit.state.fare_rows import batch, store_all, view_on
from unit.state.segment_rows import opened_tiers, sorted_rows, spec

from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.ranges import WHOLE_SPACE
from statebed.state import KeyedView, Purpose, Tiers, keyed_table_config
from statebed.state.host_cache import HostCache
from statebed.state.keyed.compaction import _ROOM
from statebed.state.keyed.files import memory_in
from statebed.state.tiers.spill_files import ParquetSpill
from statebed.state.tiers.spill_folder import SpillFolder
from statebed.state.time_keyed.files import file_bytes
from statebed.state.time_keyed.snapshot import CELLS_IN_FILE
from statebed.storage import MemoryStore

BUDGET = 4 << 20
ROWS = 4_000
CONFIG = keyed_table_config("totals", "", ["id"], pa.schema([("id", pa.int64()), ("total", pa.int64())]))
COPIES = 3
"""Number of copies of rows in memory while they are read or merged."""


@pytest.fixture
def tiers(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Tiers]:
    with opened_tiers(tmp_path / "spill", budget=getattr(request, "param", BUDGET)) as opened:
        yield opened


Noted = Callable[[type, str, Purpose], list[int]]


@pytest.fixture
def noted(tiers: Tiers, monkeypatch: pytest.MonkeyPatch) -> Noted:
    """Return the charges of all owners for a purpose at each call of a method."""

    def watch(kind: type, method: str, purpose: Purpose) -> list[int]:
        charged: list[int] = []
        real = getattr(kind, method)

        def watched(*arguments: Any, **options: Any) -> Any:
            accounts = tiers.memory.snapshot().accounts
            charged.append(sum(nbytes for (_, what), nbytes in accounts.items() if what is purpose))
            return real(*arguments, **options)

        monkeypatch.setattr(kind, method, watched)
        return charged

    return watch


def keyed_on(store: MemoryStore, tiers: Tiers, *parts: pb.TableSubtaskCheckpointMetadata, **more: Any) -> KeyedView:
    return KeyedView(CONFIG, owned=WHOLE_SPACE, store=store, tiers=tiers, parts=parts, **more)


def ids(*numbers: int) -> pa.Table:
    return pa.table({"id": pa.array(np.arange(*numbers), pa.int64())})


def write(view: KeyedView, store: MemoryStore, epoch: int, keys: pa.Table) -> pb.TableSubtaskCheckpointMetadata:
    view.upsert(keys, pa.table({"total": keys["id"]}))
    taken = view.checkpoint(lambda digest: names.data_file(epoch, "op", "totals", 0, digest))
    for upload in taken.uploads:
        store.put(upload.path, upload.content())
        upload.on_stored()
    return taken.metadata


def group_bytes(store: MemoryStore, file: pb.FileEntry) -> int:
    """Return the size of the only row group of a file."""
    metadata = pq.ParquetFile(io.BytesIO(store.get(file.path))).metadata
    assert metadata.num_row_groups == 1
    return int(metadata.row_group(0).total_byte_size)


def purposes(tiers: Tiers) -> set[Purpose]:
    return {purpose for _, purpose in tiers.memory.snapshot().accounts}


def test_a_block_that_is_loaded_from_files_is_charged_meanwhile(tiers: Tiers, noted: Noted) -> None:
    store = MemoryStore()
    metadata = write(keyed_on(store, tiers), store, 1, ids(ROWS))
    view = keyed_on(store, tiers, metadata)
    charged = noted(MemoryStore, "get_range", Purpose.RESTORES)
    assert view.get(ids(ROWS))[1].all()
    row_bytes = view.table.row_bytes
    assert set(charged) == {int(COPIES * memory_in(metadata.files, WHOLE_SPACE, row_bytes=row_bytes))}
    assert Purpose.RESTORES not in purposes(tiers)


def test_a_file_that_is_copied_into_the_hosts_cache_is_charged_meanwhile(
    tiers: Tiers, noted: Noted, tmp_path: Path
) -> None:
    store = MemoryStore()
    metadata = write(keyed_on(store, tiers), store, 1, ids(ROWS))
    charged = noted(MemoryStore, "get_range", Purpose.RESTORES)
    keyed_on(store, tiers, metadata, cache=HostCache(tmp_path / "copies", 1 << 30)).warm()
    assert max(charged) == COPIES * group_bytes(store, metadata.files[0])
    assert Purpose.RESTORES not in purposes(tiers)


def test_a_file_of_a_time_keyed_table_that_is_copied_is_charged_meanwhile(
    tiers: Tiers, noted: Noted, tmp_path: Path
) -> None:
    store = MemoryStore()
    first = view_on(store, tiers=tiers)
    first.append(batch([(1.0, 5, number) for number in range(ROWS)]))
    store_all(first, store, 1)
    charged = noted(MemoryStore, "get_range", Purpose.RESTORES)
    metadata = first.metadata()
    view_on(store, tiers=tiers, parts=[metadata], cache=HostCache(tmp_path / "copies", 1 << 30)).warm()
    assert max(charged) == COPIES * group_bytes(store, metadata.files[0])
    assert Purpose.RESTORES not in purposes(tiers)


def test_a_segment_that_is_fetched_to_local_disk_is_charged_meanwhile(tiers: Tiers, noted: Noted) -> None:
    store = MemoryStore()
    segment = tiers.segment(sorted_rows(ROWS), spec=spec(), owner="rides")
    entry = segment.upload(store, name_of=lambda digest: f"rides.{digest}.parquet", owned=WHOLE_SPACE)
    charged = noted(SpillFolder, "new_file", Purpose.RESTORES)
    assert tiers.stored(entry, store, spec=spec(), owner="rides").prefetch().result(30)
    assert charged == [entry.size]
    assert Purpose.RESTORES not in purposes(tiers)


def test_a_merge_of_a_keyed_tables_files_is_charged_meanwhile(tiers: Tiers, noted: Noted) -> None:
    store = MemoryStore()
    view = keyed_on(store, tiers)
    for epoch in (1, 2):
        write(view, store, epoch, ids(ROWS))
    job = view.plan_compaction(max_bytes=1 << 30, everything=True)
    assert job is not None
    charged = noted(MemoryStore, "get_range", Purpose.MERGES)
    job.run().discard()
    assert set(charged) == {_ROOM * job.input_bytes}
    assert Purpose.MERGES not in purposes(tiers)


@pytest.mark.parametrize(
    ("tiers", "through_disk"), [(BUDGET, False), (BUDGET // 16, True)], indirect=["tiers"], ids=["large", "small"]
)
def test_a_merge_of_a_time_keyed_tables_files_is_charged_meanwhile(
    tiers: Tiers, noted: Noted, monkeypatch: pytest.MonkeyPatch, through_disk: bool
) -> None:
    store = MemoryStore()
    view = view_on(store, tiers=tiers)
    for epoch in (1, 2):
        view.append(batch([(float(number), number % 2, number) for number in range(ROWS)]))
        store_all(view, store, epoch)
    view.delete_times(1, 2)  # so that files are worth a merge, however large they are
    for segment in view._state.segments():
        segment.spill()  # so that the merge evicts none of them
    job = view.plan_compaction(max_bytes=1 << 30, everything=True)
    assert job is not None
    written: list[int] = []
    real = ParquetSpill.write

    def write(spill: ParquetSpill, rows: pa.Table) -> None:
        written.append(int(rows.nbytes))
        real(spill, rows)

    monkeypatch.setattr(ParquetSpill, "write", write)
    charged = noted(ParquetSpill, "write", Purpose.MERGES)
    job.run().discard()
    # Where not all files fit into memory at once, parts of them are gathered, sorted and handed on.
    part = COPIES * (file_bytes(tiers) // CELLS_IN_FILE) if through_disk else 0
    assert charged == [nbytes + part for nbytes in written]
    assert sum(written) > ROWS * 40
    assert Purpose.MERGES not in purposes(tiers)


def test_a_merge_of_a_blocks_spilled_rows_is_charged_meanwhile(tiers: Tiers, noted: Noted) -> None:
    view = keyed_on(MemoryStore(), tiers, block_bytes=32 << 10)
    charged = noted(SpillFolder, "new_file", Purpose.MERGES)
    for start in range(30):
        keys = ids(start, 30 * ROWS, 30)
        view.upsert(keys, pa.table({"total": keys["id"]}))
        tiers.memory.reserve("other", Purpose.WRITES, BUDGET).release()
    assert set(charged) == {0, COPIES * tiers.memory.segment_bytes}
    assert view.get(ids(30 * ROWS))[1].all()
    assert Purpose.MERGES not in purposes(tiers)
