"""Rows of time-keyed tables at the first and the last time there is, which programs use for "always" and "never"."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from unit.state.fare_rows import Row, batch, counted, rows_of, store_all, view_on
from unit.state.segment_rows import opened_tiers

from statebed.state.live.files import BEGINNING, END
from statebed.state.tiers.shared_tiers import Tiers
from statebed.state.time_keyed.view import TimeKeyedView
from statebed.storage import MemoryStore

LARGE = 1 << 40


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[Tiers]:
    with opened_tiers(tmp_path) as opened:
        yield opened


def compact(view: TimeKeyedView) -> None:
    job = view.plan_compaction(max_bytes=LARGE, everything=True)
    assert job is not None
    view.offer_edit(job.run())


@pytest.mark.parametrize("generational", [False, True])
def test_a_row_at_the_last_time_outlives_checkpoints_restores_and_merges(tiers: Tiers, generational: bool) -> None:
    store = MemoryStore()
    view = view_on(store, tiers=tiers, generational=generational)
    rows: list[Row] = []
    for epoch in (1, 2, 3):
        rows.append((float(epoch), END, epoch))
        view.append(batch(rows[-1:]))
        store_all(view, store, epoch)
        assert rows_of(view.read()) == counted(rows)
    view = view_on(store, tiers=tiers, parts=[view.metadata()], generational=generational)
    assert rows_of(view.read()) == counted(rows)
    compact(view)
    store_all(view, store, 4)
    assert len(view.metadata().files) == 1
    assert rows_of(view.read()) == counted(rows)
    assert view.read(0, END - 1).num_rows == 0


def test_a_row_at_the_last_time_stays_when_all_before_it_is_deleted(tiers: Tiers) -> None:
    store = MemoryStore()
    view = view_on(store, tiers=tiers)
    view.append(batch([(1.0, 5, 1), (1.0, END, 2)]))
    store_all(view, store, 1)
    view.delete_times(BEGINNING, END)
    assert rows_of(view.read()) == counted([(1.0, END, 2)])
    compact(view)
    store_all(view, store, 2)
    assert rows_of(view.read()) == counted([(1.0, END, 2)])


@pytest.mark.parametrize("times", [(BEGINNING, END), (BEGINNING, 0), (0, END), (BEGINNING + 1, 0, END - 1)])
def test_files_that_span_all_times_are_merged(tiers: Tiers, times: tuple[int, ...]) -> None:
    store = MemoryStore()
    view = view_on(store, tiers=tiers)
    rows: list[Row] = []
    for epoch in range(1, 6):
        rows += [(1.0, time, epoch) for time in times]
        view.append(batch(rows[-len(times) :]))
        store_all(view, store, epoch, max_files=2)
        assert len(view.metadata().files) <= 2 + len(times)
        assert rows_of(view.read()) == counted(rows)
    compact(view)
    store_all(view, store, 6)
    files = view.metadata().files
    assert sorted((file.min_time_us, file.max_time_us) for file in files) == [(time, time) for time in times]


def test_a_row_at_the_first_time_is_in_the_first_bin(tiers: Tiers) -> None:
    store = MemoryStore()
    view = view_on(store, tiers=tiers)
    rows: list[Row] = [(1.0, BEGINNING, 1), (2.0, BEGINNING + 9, 2), (3.0, 5, 3)]
    view.append(batch(rows))
    for epoch in (1, 2):
        store_all(view, store, epoch)
        view = view_on(store, tiers=tiers, parts=[view.metadata()])
        assert rows_of(view.read(BEGINNING, 5)) == counted(rows[:2])
        assert rows_of(view.read(BEGINNING + 1)) == counted(rows[1:])
