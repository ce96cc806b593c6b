"""Keyed views against a plain dict: every operation, every order of them, any parallelism, colliding hashes."""

import dataclasses
import datetime as dt
import math
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from effort import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from statebed.arrays.key_hash import Hashes, hash_columns, normalise_key
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.ranges import owned_range, subtask_of
from statebed.state import KeyedTable, KeyedView, TimeToLiveClock, keyed_table_config
from statebed.state.keyed.block_set import REMEMBERED_IN_BUDGET
from statebed.state.keyed.durable import MAX_DELTAS
from statebed.state.keyed.files import BASE, deltas_of
from statebed.state.memory.controller import MemoryController, Purpose
from statebed.state.tiers.shared_tiers import Tiers
from statebed.storage import MemoryStore

KEYS = (pa.field("number", pa.float64()), pa.field("name", pa.string()))
VALUES = (
    pa.field("count", pa.int64(), nullable=False),
    pa.field("label", pa.string()),
    pa.field("length", pa.int32()),
)
SCHEMA = pa.schema([*KEYS, *VALUES])
TIME_TO_LIVE_US = 10
TIME_TO_LIVE = dt.timedelta(microseconds=TIME_TO_LIVE_US)
TABLES = {
    "kept": keyed_table_config("t", "", ["number", "name"], SCHEMA),
    "event time": keyed_table_config("t", "", ["number", "name"], SCHEMA, TIME_TO_LIVE),
    "epoch time": keyed_table_config(
        "t", "", ["number", "name"], SCHEMA, TIME_TO_LIVE, ttl_clock=TimeToLiveClock.EPOCH_TIME
    ),
}


def colliding_hashes(columns: Sequence[pa.Array]) -> Hashes:
    """Sixteen hashes for all keys."""
    return hash_columns(columns) & np.uint64(0xC000000000000003)


@dataclasses.dataclass
class Row:
    key: tuple[float | None, str | None]
    count: int
    label: str | None
    time: int = 0

    @property
    def identity(self) -> tuple[Any, Any]:
        number = self.key[0]
        if number is None:
            return (None, self.key[1])
        return ("nan" if math.isnan(number) else number + 0.0, self.key[1])


KEY_VALUES: list[tuple[float | None, str | None]] = [
    (None, None),
    (0.0, "a"),
    (-0.0, "a"),
    (math.nan, "a"),
    (math.nan, None),
    (1.5, ""),
    (1.5, "ä"),
    (-2.0, "a longer one, of more than thirty-two bytes"),
]
rows = st.builds(
    Row,
    key=st.sampled_from(KEY_VALUES),
    count=st.integers(-5, 5),
    label=st.sampled_from([None, "x", "y"]),
    time=st.integers(0, 40),
)
batches = st.lists(rows, min_size=2, max_size=6)

VERBS = ["upsert", "merge", "replace", "delete", "delete_values", "delete_at", "delete_times", "prefetch", "get"]

State = dict[tuple[Any, Any], Row]


def add_up(old: pa.Table, new: pa.Table) -> pa.Table:
    latest = (pc.coalesce(new[name], old[name]) for name in ("label", "length"))
    return pa.table([pc.add(old["count"], new["count"]), *latest], schema=new.schema)


def combined(old: Row, new: Row) -> Row:
    label = old.label if new.label is None else new.label
    return Row(new.key, old.count + new.count, label, max(old.time, new.time))


class KeyedViewMachine(RuleBasedStateMachine):
    @initialize(
        kind=st.sampled_from(sorted(TABLES)),
        colliding=st.booleans(),
        block_bytes=st.sampled_from([500, 4000, 1 << 20]),
        budget=st.sampled_from([3000, 20_000, 1 << 30]),
        cache_bytes=st.sampled_from([0, 4000, 1 << 30]),
    )
    def start(self, kind: str, colliding: bool, block_bytes: int, budget: int, cache_bytes: int) -> None:
        self.block_bytes = block_bytes
        self.tiers = Tiers(MemoryController(budget), cache_bytes=cache_bytes)
        self.config = TABLES[kind]
        self.table = KeyedTable(self.config)
        self.hash = colliding_hashes if colliding else hash_columns
        self.store = MemoryStore("keyed")
        self.state: State = {}
        self.now = 0
        self.epoch = 1
        self.commits: list[tuple[list[pb.TableSubtaskCheckpointMetadata], State, int]] = [([], {}, 0)]
        self.restore(which=0, parallelism=2)

    def teardown(self) -> None:
        if hasattr(self, "tiers"):
            self.tiers.close()

    # ---- the model ---------------------------------------------------------------------------------------

    def alive(self, row: Row | None) -> bool:
        return row is not None and (not self.table.expires or row.time > self.now - TIME_TO_LIVE_US)

    def visible(self) -> dict[tuple[Any, Any], tuple[int, str | None]]:
        return {key: (row.count, row.label) for key, row in self.state.items() if self.alive(row)}

    def write(self, batch: list[Row], *, merging: bool) -> None:
        once: State = {}
        for row in batch:
            timed = row if self.table.clock is TimeToLiveClock.EVENT_TIME else dataclasses.replace(row, time=self.now)
            before = once.get(row.identity)
            if before is not None:
                timed = combined(before, timed) if merging else _later(before, timed)
            once[row.identity] = timed
        for key, row in once.items():
            old = self.state.get(key)
            if old is not None and self.alive(old):
                self.state[key] = combined(old, row) if merging else _later(old, row)
            else:
                self.state[key] = row

    # ---- the views ---------------------------------------------------------------------------------------

    def parts(self, batch: list[Row]) -> list[tuple[KeyedView, pa.Table, list[Row]]]:
        """The batch by owner."""
        keys = key_table(batch)
        hashes = self.hash([normalise_key(column.combine_chunks()) for column in keys.columns])
        owners = subtask_of(hashes, len(self.views))
        found = []
        for index, view in enumerate(self.views):
            mine = [row for row, owner in zip(batch, owners, strict=True) if owner == index]
            if mine:
                found.append((view, key_table(mine), mine))
        return found

    def times(self, batch: list[Row]) -> pa.Array | None:
        if self.table.expires and self.table.clock is TimeToLiveClock.EVENT_TIME:
            return pa.array([row.time for row in batch], pa.int64())
        return None

    def upsert(self, batch: list[Row]) -> None:
        for view, keys, mine in self.parts(batch):
            view.upsert(keys, value_table(mine), times=self.times(mine))
        self.write(batch, merging=False)

    def merge(self, batch: list[Row]) -> None:
        for view, keys, mine in self.parts(batch):
            view.merge(keys, value_table(mine), add_up, times=self.times(mine))
        self.write(batch, merging=True)

    def replace(self, batch: list[Row]) -> None:
        if self.table.expires and self.table.clock is TimeToLiveClock.EVENT_TIME:
            return
        once = list({row.identity: row for row in batch}.values())
        for view, keys, mine in self.parts(once):
            if len(mine) > 1:  # then it need not look them up
                view.get(keys)
            kept = [row for row in mine if row.count > 0]
            view.replace(keys, value_table(kept), np.array([row.count > 0 for row in mine]))
        self.write([row for row in once if row.count > 0], merging=False)
        for row in once:
            if row.count <= 0:
                self.state.pop(row.identity, None)

    def delete(self, batch: list[Row]) -> None:
        for view, keys, mine in self.parts(batch):
            expected = [self.alive(self.state.get(row.identity)) for row in mine]
            assert view.delete(keys).tolist() == expected
        for row in batch:
            self.state.pop(row.identity, None)

    def delete_values(self, batch: list[Row]) -> None:
        def matches(row: Row) -> bool:
            old = self.state.get(row.identity)
            return old is not None and self.alive(old) and (old.count, old.label) == (row.count, row.label)

        for view, keys, mine in self.parts(batch):
            assert view.delete_values(keys, value_table(mine)).tolist() == [matches(row) for row in mine]
        for row in [row for row in batch if matches(row)]:
            self.state.pop(row.identity, None)

    def delete_at(self, batch: list[Row]) -> None:
        if not self.table.expires:
            return

        def matches(row: Row) -> bool:
            old = self.state.get(row.identity)
            return old is not None and self.alive(old) and old.time == row.time

        for view, keys, mine in self.parts(batch):
            times = pa.array([row.time for row in mine], pa.int64())
            assert view.delete_at(keys, times).tolist() == [matches(row) for row in mine]
        for row in [row for row in batch if matches(row)]:
            self.state.pop(row.identity, None)

    def delete_times(self, batch: list[Row]) -> None:
        if not self.table.expires:
            return
        start, end = min(row.time for row in batch), max(row.time for row in batch)
        gone = [key for key, row in self.state.items() if self.alive(row) and start <= row.time < end]
        assert sum(view.delete_times(start, end) for view in self.views) == len(gone)
        for key in gone:
            del self.state[key]

    def prefetch(self, batch: list[Row]) -> None:
        for view, keys, _ in self.parts(batch):
            for one in view.prefetch(keys):
                assert one.result(timeout=30)

    def get(self, batch: list[Row]) -> None:
        for view, keys, mine in self.parts(batch):
            values, found = view.get(keys)
            for row, value, held in zip(mine, values.to_pylist(), found, strict=True):
                old = self.state.get(row.identity)
                assert held == self.alive(old)
                expected = (old.count, old.label) if old is not None and held else (None, None)
                assert (value["count"], value["label"]) == expected
                assert value["length"] == (value["label"] and len(value["label"]))

    @rule(steps=st.lists(st.tuples(st.sampled_from(VERBS), batches), min_size=3, max_size=8))
    def work(self, steps: list[tuple[str, list[Row]]]) -> None:
        for verb, batch in steps:
            getattr(self, verb)(batch)

    @rule(step=st.integers(1, 8))
    def advance(self, step: int) -> None:
        before = len(self.visible())
        self.now += step
        expired = sum(view.advance(self.now) for view in self.views)
        unseen = before - len(self.visible())
        # Rows that were written when their time was already over expire, too, without having been visible.
        assert expired >= unseen
        if not self.table.expires:
            assert expired == 0

    @rule()
    def checkpoint(self) -> None:
        metadata = []
        for index, view in enumerate(self.views):
            changes = view.dirty_rows
            checkpoint = view.checkpoint(self.name_of(index), subtask_index=index)
            new = [file for file in checkpoint.metadata.files if file.path in {one.path for one in checkpoint.uploads}]
            if not changes and not self.table.expires:
                assert all(file.level == BASE for file in new)
            for upload in checkpoint.uploads:
                self.store.put(upload.path, upload.content())
                upload.on_stored()
            if checkpoint.uploads:
                assert len(deltas_of(checkpoint.metadata.files)) <= MAX_DELTAS
            assert view.dirty_rows == 0
            metadata.append(checkpoint.metadata)
        self.epoch += 1
        self.commits.append((metadata, dict(self.state), self.now))

    @rule(some=st.lists(rows, min_size=4, max_size=9))
    def write_in_epochs_of_their_own(self, some: list[Row]) -> None:
        for row in some:
            self.upsert([row])
            self.checkpoint()

    @rule(everything=st.booleans(), late=st.booleans())
    def compact(self, everything: bool, late: bool) -> None:
        self.checkpoint()
        jobs = [view.plan_compaction(max_bytes=500, everything=everything) for view in self.views]
        if late:
            # Whether the edit still applies or not: the rows are the same.
            self.checkpoint()
        for view, job in zip(self.views, jobs, strict=True):
            if job is not None:
                view.offer_edit(job.run())
        self.checkpoint()

    @rule()
    def another_table_takes_all_the_memory(self) -> None:
        memory = self.tiers.memory
        taker = threading.Thread(target=lambda: memory.reserve("other", Purpose.WRITES, memory.budget).release())
        taker.start()
        taker.join(30)
        assert not taker.is_alive()
        assert all(view.held_bytes == 0 for view in self.views)
        # Keys that were asked for last stay, where they are few.
        assert memory.used <= len(self.views) * memory.budget // REMEMBERED_IN_BUDGET

    @rule()
    def release(self) -> None:
        self.checkpoint()
        for view in self.views:
            view.release(1 << 30)
            assert view.held_bytes == 0

    @rule(parallelism=st.integers(1, 4))
    def stop_and_restore(self, parallelism: int) -> None:
        self.checkpoint()
        self.restore(which=-1, parallelism=parallelism)

    @rule(data=st.data(), parallelism=st.integers(1, 4))
    def crash_and_restore(self, data: st.DataObject, parallelism: int) -> None:
        which = data.draw(st.integers(max(len(self.commits) - 3, 0), len(self.commits) - 1))
        self.restore(which=which, parallelism=parallelism)

    def restore(self, *, which: int, parallelism: int) -> None:
        metadata, state, now = self.commits[which]
        self.state, self.now = dict(state), now
        self.views = [
            KeyedView(
                self.config,
                owned=owned_range(index, parallelism),
                store=self.store,
                parts=metadata,
                hash_function=self.hash,
                block_bytes=self.block_bytes,
                tiers=self.tiers,
            )
            for index in range(parallelism)
        ]
        for view in self.views:
            view.advance(now)

    def name_of(self, index: int) -> Any:
        return lambda digest: names.data_file(self.epoch, "op", "t", index, digest)

    @invariant()
    def the_rows_are_those_of_the_model(self) -> None:
        found = {}
        for view in self.views:
            for table in view.scan():
                for row in table.to_pylist():
                    key = Row((row["number"], row["name"]), 0, None).identity
                    assert key not in found
                    found[key] = (row["count"], row["label"])
        assert found == self.visible()


def _later(old: Row, new: Row) -> Row:
    return dataclasses.replace(new, time=max(old.time, new.time))


def key_table(batch: list[Row]) -> pa.Table:
    columns = [pa.array([row.key[index] for row in batch], KEYS[index].type) for index in range(2)]
    return pa.table(columns, schema=pa.schema(KEYS))


def value_table(batch: list[Row]) -> pa.Table:
    columns = [
        pa.array([row.count for row in batch], pa.int64()),
        pa.array([row.label for row in batch], pa.string()),
        pa.array([row.label and len(row.label) for row in batch], pa.int32()),
    ]
    return pa.table(columns, schema=pa.schema(VALUES))


TestKeyedView = KeyedViewMachine.TestCase
TestKeyedView.settings = settings(max_examples=examples(12), stateful_step_count=15, deadline=None)


@pytest.mark.long
@pytest.mark.timeout(1800)
class TestKeyedViewAtLength(KeyedViewMachine.TestCase):  # type: ignore[misc,valid-type]  # made by hypothesis
    settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
