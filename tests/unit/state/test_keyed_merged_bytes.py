"""Compaction by checkpoints of a keyed table: of deltas alone, so never more than what changed since the last
compaction, and each row only a few times.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from statebed.arrays.columns import from_numpy
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.ranges import WHOLE_SPACE
from statebed.state import KeyedView, Tiers, keyed_table_config, multiset_table_config
from statebed.state.keyed import delta
from statebed.state.keyed.durable import HARD_MAX_DELTAS, MAX_DELTAS
from statebed.state.keyed.files import BASE, bytes_of, deltas_of, newest_rows
from statebed.state.keyed.table import KeyedTable
from statebed.state.memory.controller import MemoryController
from statebed.storage import MemoryStore

CONFIG = keyed_table_config("totals", "", ["id"], pa.schema([("id", pa.int64()), ("total", pa.int64())]))
KEYS = 10_000
FOOTERS = 1.5
"""Factor for footers of small files, which are read separately from the rows."""
ENCODED_ANEW = 1.05
"""The same rows in other files, with other sequences, take a little more or less."""


def test_p4_a_small_part_of_several_files_does_not_keep_their_row_groups(tiers: Tiers) -> None:
    world = World(tiers)
    for _ in range(4):
        world.run_epoch(np.arange(KEYS))
    part = pb.HashRange(first=0, last=WHOLE_SPACE.last // 50)
    reader = world.view._durable.reader_of(part)
    before = pa.total_allocated_bytes()
    rows = reader.read(part)
    assert len(reader.files) >= 4
    assert pa.total_allocated_bytes() - before < 3 * rows.nbytes


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[Tiers]:
    made = Tiers(MemoryController(64 << 20), folder=tmp_path)
    yield made
    made.close()


class CountingStore(MemoryStore):
    """Counts the bytes that are read, by path."""

    def __init__(self) -> None:
        super().__init__()
        self.read: dict[str, int] = {}

    def get_range(self, path: str, start: int, length: int) -> bytes:
        self.read[path] = self.read.get(path, 0) + length
        return super().get_range(path, start, length)


class World:
    """A table of many rows in base files, of which few change in each epoch."""

    def __init__(self, tiers: Tiers) -> None:
        self.tiers = tiers
        self.store = CountingStore()
        self.epoch = 0
        self.view = KeyedView(CONFIG, owned=WHOLE_SPACE, store=self.store, tiers=tiers)
        self.rows = np.zeros(KEYS, dtype=np.int64)
        """The total of each key."""
        self.run_epoch(np.arange(KEYS))
        self.compact()

    def run_epoch(self, ids: np.ndarray) -> int:
        """Change some rows; gives the bytes that the checkpoint writes."""
        self.epoch += 1
        totals = ids * 7 + self.epoch
        columns = {"id": from_numpy(ids, pa.int64()), "total": from_numpy(totals, pa.int64())}
        if len(ids):
            self.view.upsert(pa.table(columns).select(["id"]), pa.table(columns).select(["total"]))
        self.rows[ids] = totals
        self.store.read = {}
        written = 0
        for upload in self.view.checkpoint(lambda digest: names.data_file(self.epoch, "op", "t", 0, digest)).uploads:
            content = upload.content()
            written += len(content)
            self.store.put(upload.path, content)
            upload.on_stored()
        return written

    def compact(self) -> None:
        job = self.view.plan_compaction(max_bytes=1, everything=True)
        assert job is not None
        self.view.offer_edit(job.run())
        self.run_epoch(np.arange(0))
        assert {file.level for file in self.files} == {BASE}

    @property
    def files(self) -> list[pb.FileEntry]:
        return list(self.view.metadata().files)

    @property
    def delta_bytes(self) -> int:
        return sum(map(bytes_of, deltas_of(self.files)))

    def check(self) -> None:
        restored = KeyedView(
            CONFIG, owned=WHOLE_SPACE, store=self.store, tiers=self.tiers, parts=[self.view.metadata()], owner="other"
        )
        found = pa.concat_tables(restored.scan()).sort_by("id")
        assert np.array_equal(found["id"].to_numpy(), np.arange(KEYS))
        assert np.array_equal(found["total"].to_numpy(), self.rows)
        restored.give_up()


def alone(ids: np.ndarray, tiers: Tiers) -> int:
    """The bytes of the delta of one change."""
    view = KeyedView(CONFIG, owned=WHOLE_SPACE, store=MemoryStore(), tiers=tiers, owner="alone")
    totals = pa.table({"total": from_numpy(ids * 7, pa.int64())})
    view.upsert(pa.table({"id": from_numpy(ids, pa.int64())}), totals)
    (upload,) = view.checkpoint(lambda digest: f"alone/{digest}").uploads
    view.give_up()
    return upload.size


def few_of_all(chance: np.random.Generator, _: int) -> np.ndarray:
    return np.sort(chance.choice(KEYS, 300, replace=False))


def always_the_same(_: np.random.Generator, number: int) -> np.ndarray:
    return np.arange(number % 3, 900, 3)


def now_and_then_many(chance: np.random.Generator, number: int) -> np.ndarray:
    return np.sort(chance.choice(KEYS, 2_000 if number % 11 == 5 else 100, replace=False))


@pytest.mark.parametrize("change", [few_of_all, always_the_same, now_and_then_many])
def test_what_a_checkpoint_merges_is_bounded_by_what_changed_since_the_last_compaction(
    tiers: Tiers, change: Callable[[np.random.Generator, int], np.ndarray]
) -> None:
    world = World(tiers)
    base = {file.path for file in world.files}
    chance = np.random.default_rng(1)
    changes: list[int] = []
    written: list[int] = []
    merges = 0
    for number in range(5 * MAX_DELTAS):
        ids = change(chance, number)
        before, deltas = world.delta_bytes, len(deltas_of(world.files))
        changes.append(alone(ids, tiers))
        written.append(world.run_epoch(ids))
        assert base.isdisjoint(world.store.read), "no base file is read"
        assert base <= {file.path for file in world.files}, "nor written again"
        if len(deltas_of(world.files)) == deltas + 1:
            assert not world.store.read
            assert written[-1] <= ENCODED_ANEW * changes[-1]
        else:
            merges += 1
            assert 0 < sum(world.store.read.values()) <= FOOTERS * before
            assert written[-1] <= ENCODED_ANEW * (before + changes[-1])
        assert written[-1] <= ENCODED_ANEW * sum(changes)
        assert len(deltas_of(world.files)) <= MAX_DELTAS
    assert merges >= 4
    # Once as a change, once with its neighbours, and then the delta that a row is in doubles each time.
    assert sum(written) <= sum(changes) * (2 + math.log2(sum(changes) / min(changes)))
    world.check()


def test_while_a_compaction_reads_deltas_there_are_at_most_twice_as_many_and_merges_are_as_small(tiers: Tiers) -> None:
    world = World(tiers)
    chance = np.random.default_rng(2)
    for number in range(MAX_DELTAS - 1):
        world.run_epoch(few_of_all(chance, number))
    job = world.view.plan_compaction(max_bytes=1, everything=True)
    assert job is not None
    compacted = {file.path for file in world.files}
    own = alone(few_of_all(chance, 0), tiers)
    for number in range(2 * HARD_MAX_DELTAS):
        before = world.delta_bytes
        written = world.run_epoch(few_of_all(chance, number))
        assert written <= ENCODED_ANEW * (before + own)
        assert compacted.isdisjoint(world.store.read)
        assert len(deltas_of(world.files)) <= HARD_MAX_DELTAS
    world.view.offer_edit(job.run())
    world.run_epoch(few_of_all(chance, 0))
    assert world.view.statistics().edits_applied == 2
    assert len(deltas_of(world.files)) <= MAX_DELTAS
    world.check()


def test_p4_a_checkpoint_that_merges_deltas_of_one_hot_key_reads_them_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hashes of a hot key are a small part of those between it and another key, so one piece had all its rows."""
    at_once: list[int] = []

    def counted(table: KeyedTable, rows: pa.Table) -> pa.Table:
        at_once.append(rows.nbytes)
        return newest_rows(table, rows)

    monkeypatch.setattr(delta, "newest_rows", counted)
    fields = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("count", pa.int64())])
    config = multiset_table_config("values", "", ["k"], ["v"], fields)
    tiers = Tiers(MemoryController(2 << 20), folder=tmp_path)
    store = MemoryStore()
    view = KeyedView(config, owned=WHOLE_SPACE, store=store, tiers=tiers)
    for epoch in range(1, 2 * HARD_MAX_DELTAS):
        values = np.arange(5_000 * epoch, 5_000 * (epoch + 1))
        keys = np.where(values % 1_000 == 0, 8, 7)
        view.upsert(pa.table({"k": keys, "v": values}), pa.table({"count": np.ones(len(keys), dtype=np.int64)}))
        for upload in view.checkpoint(partial(names.data_file, epoch, "op", "t", 0)).uploads:
            store.put(upload.path, upload.content())
            upload.on_stored()
    piece = tiers.memory.segment_bytes
    assert len(deltas_of(view.metadata().files)) <= HARD_MAX_DELTAS
    assert sum(at_once) > 20 * piece
    assert max(at_once) < 6 * piece  # a row of files takes three times as much as one of a block
    tiers.close()
