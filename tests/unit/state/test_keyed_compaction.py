"""Compaction of keyed tables as an edit: made beside the view, applied by the next checkpoint or discarded."""

import datetime as dt
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from statebed.errors import CorruptObjectError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.ranges import WHOLE_SPACE
from statebed.format.segment_reader import SegmentReader
from statebed.state import KeyedView, TableConfig, Tiers, keyed_table_config
from statebed.state.compaction import CompactionJob
from statebed.state.keyed.compaction import MANY_DELTAS, _compaction_of_deltas
from statebed.state.keyed.durable import HARD_MAX_DELTAS, MAX_DELTAS
from statebed.state.keyed.files import BASE, DELTA, MERGED_DELTAS, bytes_of, deltas_of
from statebed.state.keyed.output import RangeFiles
from statebed.state.memory.controller import MemoryController, Purpose
from statebed.storage import MemoryStore

SCHEMA = pa.schema([("id", pa.int64()), ("total", pa.int64())])
CONFIG = keyed_table_config("totals", "", ["id"], SCHEMA)
BLOCK = 32 << 10


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[Tiers]:
    made = Tiers(MemoryController(1 << 20), folder=tmp_path)
    yield made
    made.close()


class World:
    """A view and its store."""

    def __init__(self, tiers: Tiers, config: TableConfig = CONFIG) -> None:
        self.tiers = tiers
        self.store = MemoryStore("keyed")
        self.config = config
        self.epoch = 0
        self.view = self.restored([])

    def restored(self, parts: list[pb.TableSubtaskCheckpointMetadata]) -> KeyedView:
        return KeyedView(
            self.config, owned=WHOLE_SPACE, store=self.store, tiers=self.tiers, parts=parts, block_bytes=BLOCK
        )

    def write(self, ids: np.ndarray, factor: int, **more: pa.Array) -> None:
        table = pa.table({"id": pa.array(ids, pa.int64()), "total": pa.array(ids * factor, pa.int64())})
        self.view.upsert(table.select(["id"]), table.select(["total"]), **more)

    def commit(self) -> pb.TableSubtaskCheckpointMetadata:
        self.epoch += 1
        checkpoint = self.view.checkpoint(lambda digest: names.data_file(self.epoch, "op", "totals", 0, digest))
        for upload in checkpoint.uploads:
            self.store.put(upload.path, upload.content())
            upload.on_stored()
        return checkpoint.metadata

    def job(self, *, max_bytes: int = 1 << 30, everything: bool = False) -> CompactionJob:
        job = self.view.plan_compaction(max_bytes=max_bytes, everything=everything)
        assert job is not None
        return job

    def files(self) -> list[Path]:
        return list(self.tiers.folder.path.glob("*.parquet"))


def contents(view: KeyedView) -> dict[int, int]:
    return {row["id"]: row["total"] for part in view.scan() for row in part.to_pylist()}


def test_an_edit_is_applied_by_the_next_checkpoint_and_its_files_are_uploaded_then(tiers: Tiers) -> None:
    world = World(tiers)
    world.write(np.arange(5000), 1)
    world.commit()
    world.view.offer_edit(world.job(everything=True).run())
    assert world.files()
    assert {file.level for file in world.view.metadata().files} == {0}
    world.write(np.arange(0, 5000, 50), 2)
    metadata = world.commit()
    assert not world.files()
    assert sorted({file.level for file in metadata.files}) == [0, BASE]
    assert world.view.statistics().edits_applied == 1
    assert contents(world.restored([metadata])) == contents(world.view)
    assert contents(world.view)[50] == 100


def test_an_edit_whose_inputs_have_left_is_discarded_with_its_files(tiers: Tiers) -> None:
    world = World(tiers)
    world.write(np.arange(2000), 1)
    world.commit()
    first, second = world.job(everything=True).run(), world.job(everything=True).run()
    world.view.offer_edit(first)
    world.view.offer_edit(second)
    metadata = world.commit()
    statistics = world.view.statistics()
    assert (statistics.edits_applied, statistics.edits_discarded) == (1, 1)
    assert not world.files()
    assert contents(world.restored([metadata])) == contents(world.view)


def test_an_edit_that_waits_when_the_view_is_given_up_leaves_no_files(tiers: Tiers) -> None:
    world = World(tiers)
    world.write(np.arange(100), 1)
    world.commit()
    world.view.offer_edit(world.job(everything=True).run())
    assert world.files()
    world.view.give_up()
    assert not world.files()
    assert contents(world.view) == {number: number for number in range(100)}


def test_deleted_and_expired_rows_leave_with_a_compaction(tiers: Tiers) -> None:
    world = World(tiers, keyed_table_config("totals", "", ["id"], SCHEMA, dt.timedelta(microseconds=100)))
    ids = np.arange(1000)
    world.write(ids, 1, times=pa.array(ids))
    world.commit()
    world.view.delete(pa.table({"id": pa.array([900, 901], pa.int64())}))
    world.view.advance(600)
    world.commit()
    assert sum(file.rows for file in world.view.metadata().files) == 1000 + 501 + 2
    world.view.offer_edit(world.job(everything=True).run())
    metadata = world.commit()
    assert {file.level for file in metadata.files} == {BASE}
    assert sum(file.rows for file in metadata.files) == 1000 - 501 - 2
    assert contents(world.restored([metadata])) == contents(world.view)


@pytest.mark.parametrize("everything", [True, False])
def test_rows_that_expire_after_the_last_checkpoint_leave_with_a_compaction(tiers: Tiers, everything: bool) -> None:
    world = World(tiers, keyed_table_config("totals", "", ["id"], SCHEMA, dt.timedelta(microseconds=100)))
    ids = np.arange(1000)
    for factor in (2, 1):
        world.write(ids, factor, times=pa.array(ids))
        world.commit()
    world.view.advance(600)  # no file says so yet
    edit = world.job(everything=everything).run()
    assert sum(output.entry.rows for output in edit.outputs) == 1000 - 501
    world.view.offer_edit(edit)
    metadata = world.commit()
    assert contents(world.restored([metadata])) == contents(world.view) == {one: one for one in range(501, 1000)}


def test_a_compaction_takes_the_ranges_with_most_debt_and_few_bytes(tiers: Tiers) -> None:
    world = World(tiers)
    for factor in (1, 2):
        world.write(np.arange(20_000), factor)
        world.commit()
    everything = world.view.statistics().compaction_debt_bytes
    job = world.job(max_bytes=everything // 5)
    assert job.input_bytes <= everything // 4
    world.view.offer_edit(job.run())
    metadata = world.commit()
    assert {file.level for file in metadata.files} == {0, BASE}
    assert 0 < world.view.statistics().compaction_debt_bytes < everything
    assert contents(world.restored([metadata])) == contents(world.view)


def test_after_each_checkpoint_a_range_waits_for_several_deltas_with_as_many_rows_as_its_base(tiers: Tiers) -> None:
    world = World(tiers)

    def levels_after(ids: np.ndarray) -> list[int]:
        world.write(ids, 1)
        world.commit()
        job = world.view.plan_compaction(max_bytes=1 << 30, often=True)
        if job is None:
            return []
        edit = job.run()
        world.view.offer_edit(edit)
        return sorted({file.level for file in edit.inputs})

    for number in range(MANY_DELTAS - 1):
        assert levels_after(np.arange(number, 5000, 5)) == []
        assert (world.view.plan_compaction(max_bytes=1 << 30) is not None) == (number > 0), "a round does not wait"
    assert levels_after(np.arange(4, 5000, 5)) == [DELTA], "there is no base yet"
    for number in range(MANY_DELTAS - 1):
        assert levels_after(np.arange(number, 5000, 10)) == []
    assert levels_after(np.arange(4, 5000, 10)) == [DELTA], "half the rows of the base become one delta"
    for number in range(5, 8):
        assert levels_after(np.arange(number, 5000, 10)) == []
    assert levels_after(np.arange(4000)) == [DELTA, MERGED_DELTAS, BASE]
    metadata = world.commit()
    assert {file.level for file in metadata.files} == {BASE}
    assert contents(world.restored([metadata])) == contents(world.view) == {number: number for number in range(5000)}


def test_a_range_does_not_wait_once_a_checkpoint_has_no_changes(tiers: Tiers) -> None:
    world = World(tiers)
    for value in range(3):
        world.write(np.arange(1000), value)
        world.commit()
        assert world.view.plan_compaction(max_bytes=1 << 30, often=True) is None
    world.commit()
    job = world.view.plan_compaction(max_bytes=1 << 30, often=True)
    assert job is not None
    edit = job.run()
    assert sum(output.entry.rows for output in edit.outputs) == 1000
    world.view.offer_edit(edit)
    world.commit()
    assert world.view.plan_compaction(max_bytes=1 << 30, often=True) is None


@pytest.mark.parametrize("ids", ["new", "old"])
def test_a_growing_state_rewrites_each_row_a_few_times(tiers: Tiers, ids: str) -> None:
    world = World(tiers)
    read_rows = 0
    for number in range(40):
        world.write(np.arange(1000) + (1000 * number if ids == "new" else 0), number)
        world.commit()
        job = world.view.plan_compaction(max_bytes=1 << 30, often=True)
        if job is not None:
            edit = job.run()
            read_rows += sum(file.rows for file in edit.inputs)
            world.view.offer_edit(edit)
        assert len(deltas_of(world.view.metadata().files)) <= MAX_DELTAS
    assert read_rows <= 40_000 * (2.5 if ids == "new" else 1.5)


def test_files_that_share_no_rows_are_not_compacted(tiers: Tiers) -> None:
    world = World(tiers)
    world.write(np.arange(1000), 1)
    world.commit()
    assert world.view.plan_compaction(max_bytes=1 << 30) is None
    assert world.view.due_bytes == 0
    assert world.view.plan_compaction(max_bytes=0, everything=True) is not None, "on request, deleted rows leave"
    world.write(np.arange(3), 2)
    world.commit()
    assert world.view.due_bytes > 0
    assert len(world.job().run().inputs) == 2


def test_nothing_is_planned_before_files_are_stored_nor_when_nothing_is_due(tiers: Tiers) -> None:
    world = World(tiers)
    assert world.view.plan_compaction(max_bytes=1, everything=True) is None
    world.write(np.arange(100), 1)
    uploads = world.view.checkpoint(lambda digest: names.data_file(1, "op", "totals", 0, digest)).uploads
    assert world.view.plan_compaction(max_bytes=1, everything=True) is None
    for upload in uploads:
        world.store.put(upload.path, upload.content())
        upload.on_stored()
    world.view.offer_edit(world.job(everything=True).run())
    world.commit()
    assert world.view.plan_compaction(max_bytes=1, everything=True) is None
    assert world.view.statistics().compaction_debt_bytes == 0


def test_deltas_that_a_compaction_reads_are_left_to_it_and_later_ones_are_merged(tiers: Tiers) -> None:
    world = World(tiers)
    for number in range(MAX_DELTAS - 1):
        world.write(np.arange(number, 500, 7), number)
        world.commit()
    job = world.job(everything=True)
    for number in range(MAX_DELTAS - 2):
        world.write(np.arange(number, 500, 9), number)
        world.commit()
    assert len(deltas_of(world.view.metadata().files)) > MAX_DELTAS
    edit = job.run()
    for number in range(HARD_MAX_DELTAS):
        world.write(np.arange(number, 500, 11), number)
        world.commit()
        assert len(deltas_of(world.view.metadata().files)) <= HARD_MAX_DELTAS
    world.view.offer_edit(edit)
    metadata = world.commit()
    assert world.view.statistics().edits_applied == 1
    assert len(deltas_of(metadata.files)) <= MAX_DELTAS
    assert contents(world.restored([metadata])) == contents(world.view)


def test_deltas_become_one_beside_the_view_and_deletions_stay_in_it(tiers: Tiers) -> None:
    world = World(tiers)
    world.write(np.arange(5000), 1)
    world.commit()
    world.view.offer_edit(world.job(everything=True).run())
    world.commit()
    for number in range(2, MANY_DELTAS + 2):
        assert world.view.plan_compaction(max_bytes=1 << 30) is None
        world.write(np.arange(number, 5000, 100), number)
        world.view.delete(pa.table({"id": pa.array([number - 1, 4000 + number], pa.int64())}))
        world.commit()
    world.view.offer_edit(world.job().run())
    world.write(np.arange(50, 5000, 500), 9)
    metadata = world.commit()
    older, newer = deltas_of(metadata.files)
    assert ({file.level for file in older}, {file.level for file in newer}) == ({MERGED_DELTAS}, {DELTA})
    assert older[0].rows == 50 * MANY_DELTAS + 1  # each key once; one is in the base alone, and deleted
    assert contents(world.restored([metadata])) == contents(world.view)
    assert 4003 not in contents(world.view)
    assert contents(world.view)[550] == 9 * 550


def test_a_merge_of_deltas_takes_the_youngest_that_the_bytes_allow(tiers: Tiers) -> None:
    world = World(tiers)
    for number in range(MANY_DELTAS):
        world.write(np.arange(number, 500, 40), number)
        world.commit()
    deltas = deltas_of(world.view.metadata().files)
    one = bytes_of(deltas[-1])
    assert world.view.plan_compaction(max_bytes=2 * one - 1, everything=False) is not None  # at least one range
    files = world.view.metadata().files

    def planned(max_bytes: int) -> int | None:
        plan = _compaction_of_deltas(files, WHOLE_SPACE, max_bytes=max_bytes)
        return None if plan is None else len(plan.inputs)

    assert planned(1 << 30) == MANY_DELTAS
    assert planned(3 * one + 100) == 3
    assert planned(one) is None


def test_a_checkpoint_does_not_read_what_it_is_about_to_upload(tiers: Tiers) -> None:
    world = World(tiers)
    world.write(np.arange(20_000), 1)
    world.commit()
    world.view.offer_edit(world.job(everything=True).run())
    world.commit()
    for number in range(MANY_DELTAS):
        world.write(np.arange(number, 20_000, 500), number)
        world.commit()
    job = world.job()
    for number in range(MAX_DELTAS - 1):
        world.write(np.arange(number, 20_000, 500), number)
        world.commit()
    world.view.offer_edit(job.run())
    world.write(np.arange(7, 20_000, 900), 5)
    metadata = world.commit()
    assert world.view.statistics().edits_applied == 2
    assert len(deltas_of(metadata.files)) == MAX_DELTAS + 1
    assert contents(world.restored([metadata])) == contents(world.view)


def test_checkpoints_merge_no_deltas_themselves_while_others_do_it(tiers: Tiers) -> None:
    world = World(tiers)
    world.write(np.arange(20_000), 1)
    world.commit()
    world.view.offer_edit(world.job(everything=True).run())
    world.commit()
    for number in range(4 * MAX_DELTAS):
        world.write(np.arange(number, 20_000, 500), number)
        before = {file.path for file in world.view.metadata().files if file.level == DELTA}
        job = world.view.plan_compaction(max_bytes=1 << 30)
        edit = None if job is None else job.run()
        if edit is not None:
            before -= {file.path for file in edit.inputs}
            world.view.offer_edit(edit)
        metadata = world.commit()
        assert before <= {file.path for file in metadata.files}
        assert len(deltas_of(metadata.files)) <= MAX_DELTAS
    assert world.view.statistics().edits_discarded == 0
    assert contents(world.restored([metadata])) == contents(world.view)


def test_p6_a_compaction_in_pieces_decodes_each_row_group_once_if_memory_is_free_and_has_the_same_bytes_if_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[str] = []
    read = SegmentReader.read

    def counted(reader: SegmentReader, **parts: Any) -> pa.Table:
        decoded.append(reader.entry.path)
        return read(reader, **parts)

    monkeypatch.setattr(SegmentReader, "read", counted)
    monkeypatch.setattr(MemoryController, "segment_bytes", property(lambda _: 1 << 15))
    monkeypatch.setattr("statebed.state.keyed.compaction.ROW_GROUP_BYTES", 1 << 15)
    roomy = Tiers(MemoryController(1 << 26), folder=tmp_path)
    world = World(roomy)
    for number in range(3):
        world.write(np.arange(number, 9000, 2 + number), number)
        world.view.delete(pa.table({"id": pa.array([number, 8000 + number], pa.int64())}))
        world.commit()
    job = world.job(everything=True)
    decoded.clear()
    edit = job.run()
    assert set(Counter(decoded).values()) == {1}
    with roomy.memory.reserve("others", Purpose.READS, roomy.memory.low_bytes):
        again = job.run()
    assert min(Counter(decoded).values()) > 2
    assert [output.digest for output in again.outputs] == [output.digest for output in edit.outputs]
    again.discard()
    world.view.offer_edit(edit)
    assert contents(world.restored([world.commit()])) == contents(world.view)
    roomy.close()


def test_p7_a_damaged_input_stops_a_compaction_which_leaves_nothing_behind(tiers: Tiers) -> None:
    world = World(tiers)
    world.write(np.arange(5000), 1)
    (file, *_) = world.commit().files
    damaged = bytearray(world.store.get(file.path))
    damaged[len(damaged) // 2] ^= 1
    world.store.put(file.path, bytes(damaged))
    with pytest.raises(CorruptObjectError):
        world.job(everything=True).run()
    assert not world.files()


def test_where_files_end_does_not_depend_on_the_pieces_in_which_rows_come(tiers: Tiers) -> None:
    world = World(tiers)
    world.write(np.arange(3000), 1)
    metadata = world.commit()
    reader = world.view._durable.reader(metadata.files)
    digests = []
    for piece_bytes in (1 << 30, 5000, 700):
        spec = world.view.table.segment_spec(0)
        with RangeFiles(spec, tiers.folder, owned=WHOLE_SPACE, level=BASE, file_bytes=20_000) as files:
            for rows in reader.newest(WHOLE_SPACE, piece_bytes=piece_bytes):
                files.write(rows)
            written = files.finish()
        assert len(written) > 3
        assert written[0].entry.owned.first == 0
        assert written[-1].entry.owned.last == (1 << 64) - 1
        digests.append([file.digest for file in written])
        for file in written:
            file.path.unlink()
    assert digests[0] == digests[1] == digests[2]
