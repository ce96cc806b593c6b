"""A time-keyed view while other threads plan and run merges and take its memory away."""

import threading
from collections import Counter
from pathlib import Path

from unit.state.fare_rows import Row, batch, counted, rows_of, store_all, view_on
from unit.state.segment_rows import opened_tiers, sorted_rows, spec

from statebed.state.time_keyed.view import TimeKeyedView
from statebed.storage import MemoryStore


def test_merges_planned_and_run_beside_a_busy_view_change_nothing_that_it_shows(tmp_path: Path) -> None:
    with opened_tiers(tmp_path, budget=60_000, cache_bytes=20_000) as tiers:
        store = MemoryStore()
        view = view_on(store, tiers=tiers)
        errors: list[BaseException] = []
        done = threading.Event()

        def merge(busy: TimeKeyedView) -> None:
            try:
                while not done.is_set():
                    job = busy.plan_compaction(max_bytes=1 << 30, everything=True)
                    if job is not None:
                        busy.offer_edit(job.run())
                    busy.statistics()
            except BaseException as error:  # noqa: BLE001 - shown by the assertion below
                errors.append(error)

        def press() -> None:
            # Segments of another table, which push those of the view out.
            try:
                while not done.is_set():
                    tiers.segment(sorted_rows(300), spec=spec(), owner="rides").close()
            except BaseException as error:  # noqa: BLE001 - shown by the assertion below
                errors.append(error)

        threads = [
            threading.Thread(target=merge, args=(view,), daemon=True),
            threading.Thread(target=press, daemon=True),
        ]
        for thread in threads:
            thread.start()
        expected: Counter[tuple[str, int, int]] = Counter()
        for epoch in range(1, 30):
            some: list[Row] = [(float(number % 9), (epoch * 7 + number) % 100, epoch) for number in range(60)]
            view.append(batch(some))
            expected += counted(some)
            if epoch % 3 == 0:
                view.delete(batch([(float(epoch % 9), 0, 0)]).select(["driver"]))
                expected = Counter({row: n for row, n in expected.items() if row[0] != str(float(epoch % 9))})
            if epoch % 5 == 0:
                start = epoch % 90
                view.delete_times(start, start + 7)
                expected = Counter({row: n for row, n in expected.items() if not start <= row[1] < start + 7})
            store_all(view, store, epoch)
            assert rows_of(view.read()) == expected
            assert not errors
        done.set()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        assert not errors
        assert sum(view.edits) > 0
        restored = view_on(store, tiers=tiers, parts=[view.metadata()])
        assert rows_of(restored.read()) == expected
        for one in (view, restored):
            one.release()
        assert tiers.memory.snapshot().accounts == {}
        assert list(tiers.folder.path.iterdir()) == []
