"""Appended rows: gathered into segments, readable at once, all or none of a batch."""

import threading
from pathlib import Path

import pyarrow as pa
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.state.segment_rows import MINUTE, opened_tiers, rows, rows_in, sequences, spec

from statebed.arrays.canonical_order import first_disorder
from statebed.errors import InputError, SpillError
from statebed.state.memory.sizes import held_bytes
from statebed.state.tiers.selection import Selection
from statebed.state.tiers.shared_tiers import Tiers
from statebed.state.tiers.tier import Tier
from statebed.state.time_keyed.append_buffer import AppendBuffer
from statebed.state.time_keyed.row_group import MAX_PIECES


def make(tiers: Tiers, *, segment_bytes: int | None = None) -> AppendBuffer:
    return AppendBuffer(tiers, spec=spec(), owner="rides", segment_bytes=segment_bytes)


def test_rows_are_there_once_they_are_appended_and_once_only(tmp_path: Path) -> None:
    with opened_tiers(tmp_path) as tiers:
        buffer = make(tiers, segment_bytes=20_000)
        for start in range(0, 2000, 10):
            buffer.append(rows(10, start=start))
            if start % 200 == 0:
                assert sequences(*rows_in(buffer)) == list(range(start + 10))
        assert len(buffer.segments) >= 3
        assert buffer.rows == 2000
        buffer.append(rows(10).slice(0, 0))
        assert buffer.rows == 2000


def test_segments_are_sorted_and_pruned_by_their_bins(tmp_path: Path) -> None:
    with opened_tiers(tmp_path) as tiers:
        buffer = make(tiers)
        buffer.append(rows(400))
        buffer.append(pa.RecordBatch.from_struct_array(rows(100, start=400).to_struct_array().combine_chunks()))
        buffer.seal()
        buffer.seal()
        (segment,) = buffer.segments
        assert first_disorder(segment.read(), spec().sort_columns) is None
        second_bin = Selection(start_us=MINUTE, end_us=2 * MINUTE)
        assert sequences(*rows_in(buffer, second_bin)) == list(range(1, 500, 4))
        assert sequences(*rows_in(buffer, Selection(start_us=9 * MINUTE))) == []
        buffer.close()
        assert buffer.rows == 0
        assert tiers.memory.used == 0


@pytest.mark.parametrize(
    ("appends", "size"), [(1_500, 25), pytest.param(100_000, 100, marks=pytest.mark.long)], ids=["few", "many"]
)
def test_many_tiny_appends_cost_what_one_large_append_costs(tmp_path: Path, appends: int, size: int) -> None:
    whole = rows(appends * size)
    with opened_tiers(tmp_path, budget=4 << 30) as tiers:
        once = make(tiers)
        once.append(whole)
        one_append = tiers.memory.used
        once.close()
        assert tiers.memory.used == 0
        tiny = make(tiers)
        before = pa.total_allocated_bytes()
        for start in range(0, appends * size, size):
            # Slices: the worst case, because each pins the whole.
            tiny.append(whole.slice(start, size))
        assert tiers.memory.snapshot().peak <= 1.3 * one_append
        assert tiers.memory.used <= 1.3 * one_append
        assert pa.total_allocated_bytes() - before <= 1.3 * one_append
        assert tiny.rows == appends * size
        assert sum(len(group.pieces) for group in tiny.groups) <= 3 * MAX_PIECES


def test_a_batch_ten_times_the_budget_is_taken_whole(tmp_path: Path) -> None:
    large = rows(30_000)
    budget = held_bytes(large) // 10
    with opened_tiers(tmp_path, budget=budget) as tiers:
        buffer = make(tiers)
        buffer.append(large)
        assert tiers.memory.snapshot().peak <= budget + 3 * tiers.memory.segment_bytes
        assert {segment.tier for segment in buffer.segments} == {Tier.MEMORY, Tier.DISK}
        assert sequences(*rows_in(buffer)) == list(range(30_000))
        assert tiers.memory.snapshot().events.get("overcommits", 0) == 0


@pytest.mark.parametrize("count", [1000, 20_000])
def test_a_batch_is_taken_whole_or_not_at_all_when_the_disk_fails(tmp_path: Path, count: int) -> None:
    with opened_tiers(tmp_path, budget=300_000) as tiers:
        buffer = make(tiers)
        tiers.folder.path.rmdir()
        taken = 0

        def append_until_it_fails() -> None:
            nonlocal taken
            while True:
                buffer.append(rows(count, start=taken))
                taken += count

        with pytest.raises(SpillError):
            append_until_it_fails()
        assert tiers.memory.used == held_bytes(*rows_in(buffer))
        assert sequences(*rows_in(buffer)) == list(range(taken))
        tiers.folder.path.mkdir()
        buffer.append(rows(count, start=taken))
        assert sequences(*rows_in(buffer)) == list(range(taken + count))


def test_other_columns_are_refused_before_anything_is_taken(tmp_path: Path) -> None:
    with opened_tiers(tmp_path) as tiers:
        buffer = make(tiers)
        for wrong in (rows(5).drop_columns(["fare"]), rows(5).set_column(6, "fare", pa.array([1] * 5))):
            with pytest.raises(InputError, match="do not fit the columns"):
                buffer.append(wrong)
        nulls = pa.array([None] * 5, pa.uint64())
        with pytest.raises(InputError, match="'_seq' holds nulls"):
            buffer.append(rows(5).set_column(4, "_seq", nulls))
        assert buffer.rows == 0
        assert tiers.memory.used == 0


def test_p4_threads_that_append_ten_times_the_budget_lose_no_row_and_do_not_deadlock(tmp_path: Path) -> None:
    with opened_tiers(tmp_path, budget=700_000) as tiers:
        buffers = [make(tiers), make(tiers)]
        batches = [rows(500, start=start) for start in range(0, 120_000, 500)]
        total = sum(held_bytes(batch) for batch in batches)
        assert total > 10 * tiers.memory.budget
        errors: list[BaseException] = []
        done = threading.Event()

        def append(mine: list[pa.Table], buffer: AppendBuffer) -> None:
            try:
                for batch in mine:
                    buffer.append(batch)
            except BaseException as error:  # noqa: BLE001 - shown by the assertion below
                errors.append(error)

        def read(buffer: AppendBuffer) -> None:
            try:
                while not done.is_set():
                    seen = sequences(*rows_in(buffer, Selection(end_us=MINUTE)))
                    assert len(seen) == len(set(seen))
            except BaseException as error:  # noqa: BLE001 - shown by the assertion below
                errors.append(error)

        writers = [threading.Thread(target=append, args=(batches[n::6], buffers[n % 2]), daemon=True) for n in range(6)]
        reader = threading.Thread(target=read, args=(buffers[0],), daemon=True)
        for thread in (*writers, reader):
            thread.start()
        for thread in writers:
            thread.join(60)
        done.set()
        reader.join(60)
        assert not any(thread.is_alive() for thread in (*writers, reader))
        assert not errors
        # The last append of the threads may have exceeded the budget while another spilled; the next one makes room.
        buffers[0].append(rows(1, start=120_000))
        found = sequences(*rows_in(buffers[0]), *rows_in(buffers[1]))
        assert found == list(range(120_001))
        snapshot = tiers.memory.snapshot()
        assert snapshot.used <= snapshot.budget
        assert snapshot.spilling == 0
        for buffer in buffers:
            buffer.close()
        assert tiers.memory.used == 0


@settings(max_examples=examples(15))
@given(st.lists(st.tuples(st.sampled_from(["append", "seal", "spill", "load", "remove"]), st.integers(0, 300))))
def test_any_sequence_of_steps_keeps_the_rows_and_the_accounts(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    with opened_tiers(tmp_path_factory.mktemp("tiers"), budget=40_000) as tiers:
        buffer = make(tiers)
        expected: set[int] = set()
        following = 0
        for step, number in steps:
            segment = buffer.segments[number % len(buffer.segments)] if buffer.segments else None
            if step == "append" and number:
                buffer.append(rows(number, start=following))
                expected |= set(range(following, following + number))
                following += number
            elif step == "seal":
                buffer.seal()
            elif segment is not None and step == "remove":
                (group,) = (group for group in buffer.groups if segment in group.runs)
                for run in group.take_runs():
                    expected -= set(sequences(run.read()))
                    run.close()
            elif segment is not None and step in {"spill", "load"}:
                getattr(segment, step)()
            assert sequences(*rows_in(buffer)) == sorted(expected)
            in_memory = [table for one in buffer.segments if one.tier is Tier.MEMORY for table in [one.read()]]
            loose = [piece.rows for group in buffer.groups for piece in group.pieces]
            assert tiers.memory.used == held_bytes(*in_memory, *loose)
