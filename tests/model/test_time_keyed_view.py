"""Time-keyed views against a plain list of rows, with a budget so small that rows spill at almost every step."""

import datetime as dt
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from effort import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from statebed.arrays.key_hash import hash_columns, normalise_key
from statebed.format import checkpoint_pb2 as pb
from statebed.format.ranges import owned_range, subtask_of
from statebed.state import MemoryController, Purpose, Tiers, TimeKeyedView, timestamp_table_config
from statebed.state.compaction import Edit
from statebed.storage import MemoryStore

RETENTION = 100
BUDGET = 6_000
NAN = float("nan")
Row = tuple[float | None, int, float | None]
"""Driver (the key), time, fare (the value)."""
Seen = Counter[tuple[str, int, str]]

drivers = st.sampled_from([1.0, 2.0, 3.0, -0.0, 0.0, NAN, None])
times = st.integers(-60, 60)
fares = st.sampled_from([0.0, -0.0, 1.0, NAN, None])
some_rows = st.lists(st.tuples(drivers, times, fares), min_size=1, max_size=12)
spans = st.tuples(st.integers(-70, 70), st.integers(0, 40))


def config(*, generational: bool) -> pb.TableConfig:
    return timestamp_table_config(
        "fares",
        "",
        dt.timedelta(microseconds=RETENTION),
        generational,
        pa.schema([("driver", pa.float64()), ("fare", pa.float64())]),
        keys=["driver"],
        bin_width=dt.timedelta(microseconds=10),
    )


def batch(rows: list[Row]) -> pa.Table:
    return pa.table(
        {
            "driver": pa.array([row[0] for row in rows], pa.float64()),
            "_time": pa.array([row[1] for row in rows], pa.int64()).cast(pa.timestamp("us", tz="UTC")),
            "fare": pa.array([row[2] for row in rows], pa.float64()),
        }
    )


def plain(value: float | None) -> str:
    # -0.0 and 0.0 are one, and NaN is equal to itself.
    return str(value if value is None else value + 0.0)


def counted(rows: list[Row]) -> Seen:
    return Counter((plain(driver), time, plain(fare)) for driver, time, fare in rows)


def seen(*tables: pa.Table) -> Seen:
    found: Seen = Counter()
    for table in tables:
        columns = (table["driver"].to_pylist(), table["_time"].cast(pa.int64()).to_pylist(), table["fare"].to_pylist())
        found += counted(list(zip(*columns, strict=True)))
    return found


class TimeKeyedMachine(RuleBasedStateMachine):
    """Appends, deletions, expiry, spills, checkpoints, compactions, scans held open, crashes, rescaling."""

    @initialize(generational=st.booleans(), parallelism=st.integers(1, 3))
    def start(self, generational: bool, parallelism: int) -> None:
        self.generational = generational
        self.folder = Path(tempfile.mkdtemp())
        self.tiers = Tiers(MemoryController(BUDGET, wait_seconds=30), folder=self.folder, cache_bytes=2_000)
        self.store = MemoryStore()
        self.views: list[TimeKeyedView] = []
        self.parts: list[pb.TableSubtaskCheckpointMetadata] = []
        self.now: list[Row] = []
        self.stored: list[Row] = []
        self.scans: list[tuple[Iterator[pa.Table], Seen, Seen]] = []
        self.jobs: list[tuple[TimeKeyedView, Any]] = []
        self.epoch = 0
        self.restore(parallelism)

    def teardown(self) -> None:
        if not hasattr(self, "views"):
            return
        self.scans = []
        self.jobs = []
        for view in self.views:
            view.release()
        held = self.tiers.memory.snapshot().accounts
        # Copies of ranges that were fetched stay for later views, within the limit of the cache.
        left = [path for path in self.tiers.folder.path.iterdir() if path.suffix != ".range"]
        self.tiers.close()
        shutil.rmtree(self.folder)
        assert not held
        assert not left

    @rule(parallelism=st.integers(1, 3))
    def restore(self, parallelism: int) -> None:
        """A crash: what was not stored is lost."""
        self.scans = []
        self.jobs = []
        for view in self.views:
            view.release()
        self.views = [
            TimeKeyedView(
                config(generational=self.generational),
                owned=owned_range(index, parallelism),
                store=self.store,
                parts=self.parts,
                tiers=self.tiers,
                owner=f"fares-{index}",
            )
            for index in range(parallelism)
        ]
        self.now = list(self.stored)
        self.kept_from = -(1 << 60)

    def routed(self, rows: pa.Table) -> Iterator[tuple[TimeKeyedView, pa.Table]]:
        keys = [normalise_key(rows["driver"].combine_chunks())]
        owners = subtask_of(hash_columns(keys), len(self.views))
        for index, view in enumerate(self.views):
            yield view, rows.filter(pa.array((owners == index).tolist(), pa.bool_()))

    @rule(rows=some_rows)
    def append(self, rows: list[Row]) -> None:
        for view, mine in self.routed(batch(rows)):
            view.append(mine)
        for row in rows:
            if row[1] < self.kept_from:
                continue
            if self.generational:
                self.now = [one for one in self.now if (plain(one[0]), one[1]) != (plain(row[0]), row[1])]
            self.now.append(row)

    @rule(count=st.integers(50, 400), first=times)
    def append_many(self, count: int, first: int) -> None:
        self.append([(float(number % 5), (first + number) % 60, float(number % 3)) for number in range(count)])

    # ---- deletions -------------------------------------------------------------------------------------------

    @rule(span=spans)
    def delete_times(self, span: tuple[int, int]) -> None:
        start, end = span[0], sum(span)
        for view in self.views:
            view.delete_times(start, end)
        self.now = [row for row in self.now if not start <= row[1] < end]

    @rule(keys=st.lists(drivers, min_size=1, max_size=3))
    def delete_keys(self, keys: list[float | None]) -> None:
        for view, mine in self.routed(pa.table({"driver": pa.array(keys, pa.float64())})):
            view.delete(mine)
        gone = {plain(key) for key in keys}
        self.now = [row for row in self.now if plain(row[0]) not in gone]

    @rule(rows=some_rows)
    def delete_at(self, rows: list[Row]) -> None:
        for view, mine in self.routed(batch(rows)):
            view.delete_at(mine.select(["driver"]), mine["_time"])
        gone = {(plain(row[0]), row[1]) for row in rows}
        self.now = [row for row in self.now if (plain(row[0]), row[1]) not in gone]

    @rule(rows=some_rows)
    def delete_values(self, rows: list[Row]) -> None:
        for view, mine in self.routed(batch(rows)):
            view.delete_values(mine.select(["driver"]), mine.select(["fare"]))
        gone = {(plain(row[0]), plain(row[2])) for row in rows}
        self.now = [row for row in self.now if (plain(row[0]), plain(row[2])) not in gone]

    @rule(watermark=st.integers(20, 140))
    def advance(self, watermark: int) -> None:
        for view in self.views:
            view.advance(watermark)
        self.kept_from = max(self.kept_from, watermark - RETENTION)
        self.now = [row for row in self.now if row[1] >= self.kept_from]

    # ---- durability ------------------------------------------------------------------------------------------

    @rule(max_files=st.sampled_from([1, 4, 8]))
    def checkpoint(self, max_files: int) -> None:
        self.epoch += 1
        for index, view in enumerate(self.views):
            uploads = view.checkpoint(self.name_of(index), max_files=max_files)
            part = view.metadata(subtask_index=index)
            assert {one.path for one in uploads} <= {file.path for file in part.files}
            for one in uploads:
                data = one.content()
                assert len(data) == one.size
                self.store.put(one.path, data)
                one.on_stored()
        self.parts = [view.metadata(subtask_index=index) for index, view in enumerate(self.views)]
        self.stored = list(self.now)

    def name_of(self, index: int) -> Any:
        epoch = self.epoch
        return lambda digest: f"{epoch}/{index}-{digest}"

    @rule(index=st.integers(0, 2), everything=st.booleans())
    def plan_compaction(self, index: int, everything: bool) -> None:
        view = self.views[index % len(self.views)]
        job = view.plan_compaction(max_bytes=3_000, everything=everything)
        if job is not None:
            self.jobs.append((view, job))

    @rule()
    def run_compaction(self) -> None:
        if self.jobs:
            view, job = self.jobs.pop(0)
            edit = job.run()
            assert isinstance(edit, Edit)
            view.offer_edit(edit)

    # ---- reading ---------------------------------------------------------------------------------------------

    @rule(span=spans)
    def read_a_range(self, span: tuple[int, int]) -> None:
        start, end = span[0], sum(span)
        expected = counted([row for row in self.now if start <= row[1] < end])
        assert seen(*(view.read(start, end) for view in self.views)) == expected

    @rule(keys=st.lists(drivers, min_size=1, max_size=3))
    def read_keys(self, keys: list[float | None]) -> None:
        wanted = {plain(key) for key in keys}
        found = [view.read(keys=mine) for view, mine in self.routed(pa.table({"driver": pa.array(keys, pa.float64())}))]
        assert seen(*found) == counted([row for row in self.now if plain(row[0]) in wanted])

    @rule(span=spans)
    def begin_scan(self, span: tuple[int, int]) -> None:
        start, end = span[0], sum(span)

        def all_views() -> Iterator[pa.Table]:
            for scan in scans:
                yield from scan

        scans = [view.scan(start, end) for view in self.views]
        expected = counted([row for row in self.now if start <= row[1] < end])
        self.scans.append((all_views(), expected, Counter()))

    @rule()
    def go_on_with_scans(self) -> None:
        going = []
        for scan, expected, so_far in self.scans:
            piece = next(scan, None)
            if piece is None:
                assert so_far == expected
            else:
                going.append((scan, expected, so_far + seen(piece)))
        self.scans = going

    @rule(span=spans)
    def prefetch(self, span: tuple[int, int]) -> None:
        for view in self.views:
            for future in view.prefetch(span[0], sum(span)):
                assert future.result(30) in {True, False}

    @invariant()
    def all_rows_are_there(self) -> None:
        assert seen(*(view.read() for view in self.views)) == counted(self.now)

    @invariant()
    def memory_is_bounded(self) -> None:
        snapshot = self.tiers.memory.snapshot()
        # Tombstones cannot leave memory before the next checkpoint; scans that are open hold pieces of files.
        held = sum(nbytes for (_, purpose), nbytes in snapshot.accounts.items() if purpose is not Purpose.TOMBSTONES)
        assert held <= BUDGET + 2_000 * (1 + len(self.scans)) * len(self.views)
        for view in self.views:
            view.statistics()


TestTimeKeyedMachine = TimeKeyedMachine.TestCase
TestTimeKeyedMachine.settings = settings(max_examples=examples(15), stateful_step_count=20, deadline=None)
