"""Segments that many threads read, move, load and drop at once: rows and accounts stay exact, no thread hangs."""

import random
import threading
from pathlib import Path

from unit.state.segment_rows import opened_tiers, sequences, sorted_rows, spec

from statebed.format.ranges import WHOLE_SPACE
from statebed.state.tiers.segments import Segment
from statebed.storage.memory_store import MemoryStore

SEGMENTS, ROWS, THREADS, STEPS = 8, 400, 6, 75


def test_rows_stay_right_while_segments_move_in_all_directions(tmp_path: Path) -> None:
    store, errors = MemoryStore(), list[BaseException]()
    # Room for about four of the eight in memory, and for about three on disk once the store has them.
    with opened_tiers(tmp_path, budget=4 * 26_000, cache_bytes=3 * 26_000) as tiers:
        segments = [
            tiers.segment(sorted_rows(ROWS, start=n * ROWS), spec=spec(), owner=f"table {n % 3}")
            for n in range(SEGMENTS)
        ]

        def step(segment: Segment, number: int, choice: str) -> None:
            if choice == "read":
                assert sequences(segment.read()) == list(range(number * ROWS, (number + 1) * ROWS))
            elif choice == "upload":
                segment.upload(store, name_of=lambda digest: f"data/{digest}.parquet", owned=WHOLE_SPACE)
            elif choice == "prefetch":
                assert segment.prefetch().result(30) in {True, False}
            else:
                getattr(segment, choice)()

        def work(seed: int) -> None:
            dice = random.Random(seed)
            try:
                for _ in range(STEPS):
                    number = dice.randrange(SEGMENTS)
                    step(segments[number], number, dice.choice(["read"] * 4 + ["spill", "load", "prefetch", "upload"]))
            except BaseException as error:  # noqa: BLE001 - shown by the assertion below
                errors.append(error)

        threads = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        assert not errors
        assert tiers.cache.used <= tiers.cache.capacity
        for number, segment in enumerate(segments):
            step(segment, number, "read")
            segment.close()
        assert tiers.memory.used == 0
        assert tiers.memory.snapshot().spilling == 0
        assert tiers.cache.used == 0
        assert list(tiers.folder.path.iterdir()) == []
