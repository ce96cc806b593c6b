"""Multiset tables: one row for each element of a group, read by group in pages, whatever the size of the group."""

import datetime as dt
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from effort import every_third

from statebed.arrays.key_hash import Hashes, hash_columns, placement_hash
from statebed.errors import IncompatibleSchemaError, InputError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.ranges import WHOLE_SPACE, owned_range
from statebed.state import KeyedView, TableConfig, Tiers, multiset_table_config
from statebed.state.evolution.evolve import evolve
from statebed.state.keyed.extents import Extents
from statebed.state.memory.controller import MemoryController, Purpose
from statebed.storage import MemoryStore

SCHEMA = pa.schema([("key", pa.int64()), ("element", pa.string()), ("count", pa.int64())])
CONFIG = multiset_table_config("rows", "", ["key"], ["element"], SCHEMA)
BUDGET = 4 << 20
HOT = 7

Model = dict[tuple[int, str], int]


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[Tiers]:
    made = Tiers(MemoryController(BUDGET), folder=tmp_path)
    yield made
    made.close()


class World:
    """A view, its store, and what should be in it."""

    def __init__(self, tiers: Tiers, config: TableConfig = CONFIG, *, owned: pb.HashRange = WHOLE_SPACE) -> None:
        self.tiers, self.config, self.owned = tiers, config, owned
        self.store = MemoryStore("multiset")
        self.epoch = 0
        self.view = self.restored([])

    def restored(self, parts: list[pb.TableSubtaskCheckpointMetadata], owned: pb.HashRange | None = None) -> KeyedView:
        return KeyedView(self.config, owned=owned or self.owned, store=self.store, tiers=self.tiers, parts=parts)

    def upsert(self, keys: np.ndarray, elements: list[str], counts: np.ndarray) -> None:
        self.view.upsert(rows_of(keys, elements), pa.table({"count": pa.array(counts, pa.int64())}))

    def commit(self) -> pb.TableSubtaskCheckpointMetadata:
        self.epoch += 1
        checkpoint = self.view.checkpoint(lambda digest: names.data_file(self.epoch, "op", "rows", 0, digest))
        for upload in checkpoint.uploads:
            self.store.put(upload.path, upload.content())
            upload.on_stored()
        return checkpoint.metadata

    def compact(self) -> None:
        job = self.view.plan_compaction(max_bytes=1 << 30, everything=True)
        assert job is not None
        self.view.offer_edit(job.run())


def rows_of(keys: np.ndarray | list[int], elements: list[str]) -> pa.Table:
    return pa.table({"key": pa.array(keys, pa.int64()), "element": pa.array(elements, pa.string())})


def groups_of(keys: list[int]) -> pa.Table:
    return pa.table({"key": pa.array(keys, pa.int64())})


def read(view: KeyedView, keys: list[int]) -> Model:
    """All rows of groups; none comes twice."""
    found: Model = {}
    for page in view.elements(groups_of(keys)):
        for group, row in zip(page.groups.tolist(), page.rows.to_pylist(), strict=True):
            assert (keys[group], row["element"]) not in found
            found[keys[group], row["element"]] = row["count"]
    return found


def of_groups(model: Model, keys: list[int]) -> Model:
    wanted = set(keys)
    return {row: count for row, count in model.items() if row[0] in wanted}


def test_rows_of_a_group_share_the_upper_half_of_its_hash_and_differ_in_the_lower() -> None:
    keys, elements = pa.array([1] * 1000 + [2] * 1000), pa.array([str(n) for n in range(2000)])
    hashes = placement_hash([keys, elements], 1)
    upper = hashes >> np.uint64(32)
    np.testing.assert_array_equal(upper, hash_columns([keys]) >> np.uint64(32))
    np.testing.assert_array_equal(hashes & np.uint64(0xFFFFFFFF), hash_columns([keys, elements]) >> np.uint64(32))
    assert len(np.unique(hashes)) == 2000


@pytest.mark.parametrize("spilled", [pytest.param(False, marks=pytest.mark.long), True])
@pytest.mark.parametrize("seed", [1])
def test_groups_are_read_as_a_model_says(tiers: Tiers, spilled: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    world, model = World(tiers), Model()
    parts: list[pb.TableSubtaskCheckpointMetadata] = []
    ballast = World(tiers)
    for step in range(9):
        size = 1000
        keys = np.where(rng.random(size) < 0.5, HOT, rng.integers(0, 300, size))
        elements = [f"element {n:06d}" for n in rng.integers(0, 20_000, size)]
        counts = rng.integers(1, 9, size)
        world.upsert(keys, elements, counts)
        model |= dict(zip(zip(keys.tolist(), elements, strict=True), counts.tolist(), strict=True))
        gone = list(model)[:: 7 + step]
        asked = rows_of([row[0] for row in gone], [row[1] for row in gone])
        assert world.view.delete(asked).all()
        model = {row: count for row, count in model.items() if row not in set(gone)}
        dropped = rng.choice(300, 3, replace=False).tolist()
        assert world.view.delete_elements(groups_of(dropped)) == len(of_groups(model, dropped))
        model = {row: count for row, count in model.items() if row[0] not in dropped}
        if spilled:
            # Others take the room: what is here has to leave for files.
            ballast.upsert(np.arange(20_000) + 20_000 * step, ["x" * 40] * 20_000, np.ones(20_000, dtype=np.int64))
        wanted = [HOT, *rng.choice(300, 20, replace=False).tolist()]
        wanted = list(dict.fromkeys(wanted))
        assert read(world.view, wanted) == of_groups(model, wanted)
        if step % 3 == 2:
            parts = [world.commit()]
            world.compact()
        if step == 8:
            world.view.give_up()
            world.view = world.restored(parts)
            assert read(world.view, list(range(300))) == model
    assert read(world.view, list(range(300))) == model
    values, found = world.view.get(rows_of([row[0] for row in model], [row[1] for row in model]))
    assert found.all()
    assert values["count"].to_pylist() == list(model.values())
    if spilled:
        assert tiers.memory.snapshot().events["spills"] > 0


def test_a_large_group_comes_in_pages_inside_the_budget(tiers: Tiers) -> None:
    world, count = World(tiers), 200_000
    for start in range(0, count, 20_000):
        elements = [f"element {n:08d}" for n in range(start, start + 20_000)]
        world.upsert(np.full(20_000, HOT), elements, np.arange(start, start + 20_000))
    metadata = world.commit()
    world.view.give_up()
    view = world.restored([metadata])
    tiers.memory.restart_peak()
    pages = [(page.rows.num_rows, page.rows.nbytes) for page in view.elements(groups_of([HOT]))]
    assert sum(rows for rows, _ in pages) == count
    assert max(nbytes for _, nbytes in pages) < BUDGET // 4
    assert tiers.memory.snapshot().peak <= BUDGET
    asked = rows_of([HOT, HOT], ["element 00000017", "element x"])
    values, found = view.get(asked)
    assert found.tolist() == [True, False]
    assert values["count"].to_pylist() == [17, None]


def test_a_page_is_not_larger_if_the_rows_of_a_block_are_in_many_runs(tiers: Tiers) -> None:
    """Files and memory each have a part of the rows between any two hashes."""
    world, ballast = World(tiers), World(tiers)
    for start in range(0, 16_000, 2_000):
        elements = [f"element {n:08d}" for n in range(start, start + 2_000)]
        world.upsert(np.full(2_000, HOT), elements, np.arange(start, start + 2_000))
        if start < 12_000:
            ballast.upsert(np.arange(20_000) + 10 * start, ["x" * 40] * 20_000, np.ones(20_000, dtype=np.int64))
    runs = [len(slot.block.frozen) + len(slot.block.loose_runs) for slot in world.view._blocks]
    assert max(runs) > 3
    pages = [page.rows for page in world.view.elements(groups_of([HOT]))]
    assert sum(page.num_rows for page in pages) == 16_000
    assert max(page.nbytes for page in pages) <= tiers.memory.segment_bytes


def test_one_more_element_writes_one_row_whatever_the_group_has(tiers: Tiers) -> None:
    world = World(tiers)
    world.upsert(np.full(50_000, HOT), [str(n) for n in range(50_000)], np.ones(50_000, dtype=np.int64))
    world.commit()
    world.upsert(np.array([HOT]), ["one more"], np.array([1]))
    metadata = world.commit()
    assert [file.rows for file in metadata.files if file.max_sequence == metadata.next_sequence - 1] == [1]


def test_the_bytes_of_files_do_not_depend_on_the_order_of_writes_or_on_spilling(tmp_path: Path) -> None:
    def digests(budget: int, order: np.ndarray) -> list[str]:
        tiers = Tiers(MemoryController(budget), folder=tmp_path / str(budget) / str(order[0]))
        world = World(tiers)
        # Cuts of files follow the size of blocks, which is to be the same.
        world.view = KeyedView(CONFIG, owned=WHOLE_SPACE, store=world.store, tiers=tiers, block_bytes=256 << 10)
        for start in range(0, len(order), 5000):
            rows = order[start : start + 5000]
            world.upsert(np.where(rows % 3, HOT, rows), [f"e{n}" for n in rows], rows)
        paths = [file.path for file in world.commit().files]
        tiers.close()
        return paths

    rng = np.random.default_rng(3)
    plain, shuffled = np.arange(30_000), rng.permutation(30_000)
    found = digests(64 << 20, plain)
    assert found == digests(64 << 20, shuffled) == digests(2 << 20, plain) == digests(2 << 20, shuffled)


def test_rescaled_subtasks_own_whole_groups(tiers: Tiers) -> None:
    world = World(tiers)
    keys = np.concatenate([np.full(3000, HOT), np.arange(3000) % 100])
    elements = [str(n) for n in range(6000)]
    world.upsert(keys, elements, np.ones(6000, dtype=np.int64))
    parts = [world.commit()]
    model = dict.fromkeys(zip(keys.tolist(), elements, strict=True), 1)
    found: Model = {}
    for subtask in range(3):
        owned = owned_range(subtask, 3)
        hashes = hash_columns([pa.array(range(100), pa.int64())])
        mine = np.flatnonzero((hashes >= np.uint64(owned.first)) & (hashes <= np.uint64(owned.last))).tolist()
        part = read(world.restored(parts, owned), mine)
        assert part == of_groups(model, mine)
        found |= part
    assert found == model


def test_groups_whose_hashes_share_the_upper_half_are_told_apart(tiers: Tiers) -> None:
    keys = np.arange(400_000)
    upper = hash_columns([pa.array(keys, pa.int64())]) >> np.uint64(32)
    order = np.argsort(upper, kind="stable")
    same = np.flatnonzero(upper[order][1:] == upper[order][:-1])
    assert len(same)
    pairs = [(int(keys[order[n]]), int(keys[order[n + 1]])) for n in same]
    world, model = World(tiers), Model()
    for one, other in pairs:
        for key in (one, other):
            elements = [f"{key}-{n}" for n in range(50)]
            world.upsert(np.full(50, key), elements, np.arange(50))
            model |= {(key, element): n for n, element in enumerate(elements)}
    both = [key for pair in pairs for key in pair]
    assert read(world.view, both) == model
    firsts = [pair[0] for pair in pairs]
    assert read(world.view, firsts) == of_groups(model, firsts)
    assert world.view.delete_elements(groups_of(firsts)) == 50 * len(firsts)
    assert read(world.view, both) == of_groups(model, [pair[1] for pair in pairs])


def test_elements_with_equal_hashes_come_in_the_order_of_their_values(tiers: Tiers) -> None:
    def constant(columns: Sequence[Any]) -> Hashes:
        return (hash_columns(columns[:1]) >> np.uint64(32)) << np.uint64(32)

    for elements in (["b", "a", "c"], ["c", "b", "a"]):
        view = KeyedView(CONFIG, owned=WHOLE_SPACE, store=MemoryStore(), tiers=tiers, hash_function=constant)
        for element in elements:
            view.upsert(rows_of([HOT], [element]), pa.table({"count": pa.array([1])}))
        (page,) = view.elements(groups_of([HOT]))
        assert page.rows["element"].to_pylist() == ["a", "b", "c"]


def test_expired_elements_are_not_read(tiers: Tiers) -> None:
    config = multiset_table_config("rows", "", ["key"], ["element"], SCHEMA, ttl=dt.timedelta(seconds=1))
    world = World(tiers, config)
    times = pa.array([0, 1_500_000], pa.int64())
    world.view.upsert(rows_of([1, 1], ["old", "new"]), pa.table({"count": pa.array([1, 2])}), times=times)
    world.view.advance(1_200_000)
    (page,) = world.view.elements(groups_of([1]))
    assert page.rows["element"].to_pylist() == ["new"]
    assert page.rows["_time"].cast(pa.int64()).to_pylist() == [1_500_000]


def test_a_group_without_rows_gives_no_page(tiers: Tiers) -> None:
    world = World(tiers)
    assert list(world.view.elements(groups_of([1, 2]))) == []
    assert list(world.view.elements(groups_of([]))) == []
    assert world.view.delete_elements(groups_of([1, 2])) == 0


def test_what_cannot_be_read_by_group_is_refused(tiers: Tiers) -> None:
    world = World(tiers)
    with pytest.raises(InputError, match="more than once"):
        world.view.elements(groups_of([1, 1]))
    with pytest.raises(InputError, match="belong to another subtask"):
        world.restored([], owned_range(0, 1000)).elements(groups_of(list(range(100))))
    with pytest.raises(InputError, match="at least one column in elements"):
        multiset_table_config("rows", "", ["key"], [], SCHEMA)
    with pytest.raises(InputError, match=r"write elements=\['element'\]"):
        multiset_table_config("rows", "", ["key"], "element", SCHEMA)


def test_a_keyed_table_does_not_become_a_multiset_table() -> None:
    plain = pb.TableConfig()
    plain.CopyFrom(CONFIG)
    plain.keyed.ClearField("prefix_columns")
    with pytest.raises(IncompatibleSchemaError, match="rows are placed by other hashes"):
        evolve(CONFIG, stored=plain)


def test_extents_are_cut_where_the_rows_are() -> None:
    extents = Extents(
        np.array([0, 1 << 60], dtype=np.uint64),
        np.array([(1 << 64) - 1, (1 << 60) + (1 << 32) - 1], dtype=np.uint64),
        np.array([1000.0, 9000.0]),
    )
    parts = extents.cut(WHOLE_SPACE, piece_bytes=1000)
    assert (parts[0].first, parts[-1].last) == (0, (1 << 64) - 1)
    assert all(one.last + 1 == other.first for one, other in itertools.pairwise(parts))
    assert max(extents.bytes_in(part) for part in parts) < 1100


def hot_world(tiers: Tiers, size: int) -> tuple[World, pb.TableSubtaskCheckpointMetadata]:
    """A stored group of `size` elements, in several files."""
    world = World(tiers)
    for start in range(0, size, size // 4):
        elements = [f"element {n:06d}" for n in range(start, start + size // 4)]
        world.upsert(np.full(len(elements), HOT), elements, np.arange(start, start + len(elements)))
        metadata = world.commit()
    return world, metadata


@pytest.fixture
def large_tiers(tmp_path: Path) -> Iterator[Tiers]:
    """Return tiers with blocks of 2 MB."""
    made = Tiers(MemoryController(8 * BUDGET), folder=tmp_path)
    yield made
    made.close()


def test_a_lookup_after_a_restore_loads_a_small_part_of_a_block(large_tiers: Tiers) -> None:
    tiers = large_tiers
    world, metadata = hot_world(tiers, 40_000)
    world.view = world.restored([metadata])
    before = tiers.memory.used
    found = world.view.get(rows_of([HOT], ["element 000123"]))[0]
    assert found["count"].to_pylist() == [123]
    loaded = tiers.memory.used - before
    list(world.view.elements(groups_of([HOT])))
    assert loaded < 400_000 < tiers.memory.used - before
    assert world.view.count_elements(groups_of([HOT]), np.array([40_000])).tolist() == [40_000]


@pytest.mark.parametrize("seed", every_third(range(3)))
def test_lookups_writes_and_scans_between_parts_of_a_block_see_all_rows(large_tiers: Tiers, seed: int) -> None:
    tiers = large_tiers
    rng = np.random.default_rng(seed)
    world, metadata = hot_world(tiers, 20_000)
    model: Model = {(HOT, f"element {n:06d}"): n for n in range(20_000)}
    for _ in range(3):
        world.view = world.restored([metadata])
        for step in range(30):
            names_of = [f"element {n:06d}" for n in rng.integers(0, 21_000, int(rng.integers(1, 4)))]
            values, found = world.view.get(rows_of([HOT] * len(names_of), names_of))
            expected = [model.get((HOT, name)) for name in names_of]
            assert values["count"].to_pylist() == expected
            assert found.tolist() == [one is not None for one in expected]
            if step % 3 == 0:
                world.upsert(np.full(len(names_of), HOT), names_of, np.full(len(names_of), -step))
                model |= dict.fromkeys(((HOT, name) for name in names_of), -step)
            elif step % 3 == 1:
                world.view.delete(rows_of([HOT] * len(names_of), names_of))
                for name in names_of:
                    model.pop((HOT, name), None)
            if step == 20:
                spill_everything(tiers)
        assert read(world.view, [HOT]) == model
        metadata = world.commit()


def spill_everything(tiers: Tiers) -> None:
    with tiers.memory.reserve("test", Purpose.READS, tiers.memory.budget):
        pass


def test_distinct_keys_come_in_the_order_of_hashes_with_the_rows_that_have_them(tiers: Tiers) -> None:
    world = World(tiers)
    keys = rows_of([1, 2, 1, 3, 2, 1], ["a", "b", "a", "c", "b", "x"])
    unique, grouping = world.view.distinct(keys)
    hashes = placement_hash([column.chunk(0) for column in unique.columns], 1)
    assert (hashes[1:] > hashes[:-1]).all()
    groups = np.split(grouping.order, grouping.starts[1:])
    assert [keys.take(group).to_pylist() for group in groups] == [
        [row] * len(group) for row, group in zip(unique.to_pylist(), groups, strict=True)
    ]
    assert sorted(grouping.sizes.tolist()) == [1, 1, 2, 2]


def test_distinct_keys_are_looked_up_and_written_like_any_others(tiers: Tiers) -> None:
    world = World(tiers)
    unique, _ = world.view.distinct(rows_of([5, 4, 5, 6], ["a", "b", "a", "c"]))
    assert not world.view.has(unique).any()
    world.view.upsert(unique, pa.table({"count": unique["key"]}))
    values, has_values = world.view.get(rows_of([6, 4, 9, 5, 4], ["c", "b", "a", "a", "b"]))
    assert values["count"].to_pylist() == [6, 4, None, 5, 4]
    assert has_values.tolist() == world.view.has(rows_of([6, 4, 9, 5, 4], ["c", "b", "a", "a", "b"])).tolist()
    assert has_values.tolist() == [True, True, False, True, True]
