"""Aggregation over windows by subtasks against a plain model and DuckDB, over random streams, cuts and rescales."""

import functools
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import duck
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from statebed.aggregates.functions import count
from statebed.aggregates.functions import sum as sum_of
from statebed.arrays.key_hash import hash_columns, normalise_key
from statebed.format import checkpoint_pb2 as pb
from statebed.format.ranges import overlaps, owned_range
from statebed.format.sealed import open_sealed
from statebed.operators import Window, WindowAggregate, cumulative, sliding, tumbling
from statebed.state import TimeKeyedView
from statebed.state.time_keyed.table import MAX_FILES
from statebed.storage import MemoryStore, ObjectStore
from statebed.subtasks import SubtaskReport, SubtaskTask, run_subtask

DELAY = 15
FAR = 10_000_000

OPERATOR = WindowAggregate(
    operator_id="per_window",
    keys=(pa.field("name", pa.string()), pa.field("zone", pa.float64())),
    window=tumbling("10 us", offset="3 us"),
    aggregates=(
        count().bind("n"),
        count(where="flag").bind("flagged"),
        sum_of("i").bind("ints", input_types=(pa.int64(),)),
        sum_of("f").bind("floats", input_types=(pa.float64(),)),
        sum_of("d").bind("decimals", input_types=(pa.decimal128(10, 2),)),
    ),
)

WINDOWS = [
    OPERATOR.window,
    sliding("10 us", "5 us"),
    sliding("12 us", "5 us", offset="1 us"),
    sliding("7 us", "7 us"),
    cumulative("12 us", "4 us", offset="2 us"),
]


@dataclass(frozen=True)
class Row:
    name: str | None
    zone: float | None
    time: int | None
    flag: bool | None
    i: int | None
    f: float | None
    d: Decimal | None

    def key(self) -> tuple[str | None, float | str | None]:
        if self.zone is None:
            return self.name, None
        return self.name, "nan" if math.isnan(self.zone) else self.zone + 0.0


def key_hash(row: Row) -> int:
    return _hash_of(*row.key())


@functools.cache
def _hash_of(name: str | None, zone: float | str | None) -> int:
    zones = pa.array([None if zone is None else float(zone)], pa.float64())
    return int(hash_columns([pa.array([name], pa.string()), normalise_key(zones)])[0])


def batches_of(rows: Sequence[Row], *, piece: int) -> Iterator[pa.RecordBatch]:
    schema = OPERATOR.inputs[0].schema
    for start in range(0, len(rows), piece):
        part = rows[start : start + piece]
        signed = [number - (1 << 64) if (number := key_hash(row)) >= 1 << 63 else number for row in part]
        columns = [
            signed,
            [row.time for row in part],
            [row.name for row in part],
            [row.zone for row in part],
            [row.flag for row in part],
            [row.i for row in part],
            [row.f for row in part],
            [row.d for row in part],
        ]
        arrays = [pa.array(values, kind) for values, kind in zip(columns, schema.types, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


@dataclass
class Pipeline:
    """Epoch after epoch, with the watermarks of Spark's rule; keeps what was put out."""

    store: ObjectStore = field(default_factory=MemoryStore)
    operator: WindowAggregate = OPERATOR
    epoch: int = 0
    base: tuple[pb.SubtaskReference, ...] = ()
    watermark: int | None = None
    newest: int | None = None
    output: list[dict[str, Any]] = field(default_factory=list)
    late: int = 0
    rows_in: int = 0

    def next_watermark(self) -> int | None:
        if self.newest is None:
            return self.watermark
        return max(self.newest - DELAY, self.watermark if self.watermark is not None else self.newest - DELAY)

    def run(
        self, rows: Sequence[Row], *, parallelism: int = 1, piece: int = 5, watermark: int | None = None
    ) -> list[SubtaskReport]:
        mark = self.next_watermark() if watermark is None else watermark
        reports = []
        for index in range(parallelism):
            owned = owned_range(index, parallelism)
            mine = [row for row in rows if owned.first <= key_hash(row) <= owned.last]
            task = SubtaskTask(
                job_id="job",
                epoch=self.epoch + 1,
                operator=self.operator,
                subtask_index=index,
                parallelism=parallelism,
                base=tuple(one.SerializeToString() for one in self.base if overlaps(one.owned, owned)),
                late_us=self.watermark,
                watermark_us=mark,
                epoch_time_us=0,
            )
            batches = batches_of(mine, piece=piece)
            reports.append(run_subtask(task, self.store, batches))
        self.epoch += 1
        self.base = tuple(report.reference for report in reports)
        self.watermark = mark
        seen = [row.time for row in rows if row.time is not None]
        self.newest = max([*seen, *([] if self.newest is None else [self.newest])], default=None)
        self.late += sum(report.rows_late for report in reports)
        self.rows_in += sum(report.rows_in for report in reports)
        for report in reports:
            assert report.rows_out == sum(file.rows for file in report.outbox)
            for file in report.outbox:
                self.output += pq.read_table(pa.BufferReader(self.store.get(file.path))).to_pylist()
        return reports

    def state(self) -> pa.Table:
        """The folded state of all subtasks."""
        pieces = []
        for reference in self.base:
            data = self.store.get(reference.path)
            metadata = open_sealed(pb.OperatorCheckpointMetadata, data, where=reference.path)
            parts = list(metadata.tables["partials"].subtasks.values())
            config = OPERATOR.tables["partials"]
            view = TimeKeyedView(config, owned=reference.owned, store=self.store, parts=parts)
            pieces.append(view.read(hashed=True))
            view.release()
        rows = pa.concat_tables(pieces)
        sequences = pa.repeat(pa.scalar(1, pa.uint64()), rows.num_rows)
        return OPERATOR.combined(rows.append_column("_seq", sequences)) if rows.num_rows else rows


def float_sum(values: Iterable[float]) -> float | str:
    values = list(values)
    special = [value for value in values if not math.isfinite(value)]
    if special:
        total = sum(special)
        return "nan" if math.isnan(total) else total
    exact = sum((Fraction(value) for value in values), Fraction())
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


@dataclass(frozen=True)
class Admitted:
    """A row, and the watermark that had closed windows before it came."""

    row: Row
    late_us: int | None


def windows_of(window: Window, time: int) -> list[tuple[int, int]]:
    """Every window that holds a time."""
    sizes = [window.width_us]
    if window.shape.value == "cumulative":
        sizes = list(range(window.slide_us, window.width_us + 1, window.slide_us))
    latest = time - (time - window.offset_us) % window.period_us
    starts = range(latest, time - window.width_us, -window.period_us)
    return [(start, start + size) for start in starts for size in sizes if time < start + size]


def model_output(
    admitted: Iterable[Admitted], window: Window = OPERATOR.window
) -> dict[tuple[object, ...], tuple[object, ...]]:
    """Return the results of admitted rows once every window is closed."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for one in admitted:
        assert one.row.time is not None
        for start, end in windows_of(window, one.row.time):
            if one.late_us is None or end > one.late_us:
                groups.setdefault((*one.row.key(), start, end), []).append(one.row)

    def total(values: list[Any], add: Any) -> Any:
        present = [value for value in values if value is not None]
        return add(present) if present else None

    return {
        group: (
            len(members),
            sum(row.flag is not None for row in members),
            total([row.i for row in members], sum),
            total([row.f for row in members], float_sum),
            total([row.d for row in members], sum),
        )
        for group, members in groups.items()
    }


def as_model(output: Sequence[dict[str, Any]]) -> dict[tuple[object, ...], tuple[object, ...]]:
    found: dict[tuple[object, ...], tuple[object, ...]] = {}
    for row in output:
        zone = row["zone"]
        zone = "nan" if zone is not None and math.isnan(zone) else zone
        start, end = (_microseconds(row[name]) for name in ("window_start", "window_end"))
        group = (row["name"], zone, start, end)
        assert group not in found, "a window was put out twice for one key"
        floats = row["floats"]
        floats = "nan" if floats is not None and math.isnan(floats) else floats
        found[group] = (row["n"], row["flagged"], row["ints"], floats, row["decimals"])
    return found


def _microseconds(moment: Any) -> int:
    return int(pa.scalar(moment, pa.timestamp("us", tz="UTC")).value)


def is_late(row: Row, late_us: int | None, window: Window = OPERATOR.window) -> bool:
    if row.time is None:
        return True
    return late_us is not None and all(end <= late_us for _, end in windows_of(window, row.time))


ROWS = st.builds(
    Row,
    name=st.sampled_from(["a", "b", "é", "", None]),
    zone=st.sampled_from([0.0, -0.0, math.nan, 1.5, None]),
    time=st.one_of(st.integers(-60, 60), st.none()),
    flag=st.sampled_from([True, None]),
    i=st.one_of(st.integers(-(1 << 40), 1 << 40), st.none()),
    f=st.one_of(st.floats(), st.sampled_from([1e308, -1e308, 0.1, 1e16, -0.0]), st.none()),
    d=st.one_of(st.decimals(-1000, 1000, places=2), st.none()),
)
EPOCHS = st.lists(st.tuples(st.lists(ROWS, max_size=12), st.integers(1, 4)), max_size=10)


@pytest.mark.parametrize("window", WINDOWS, ids=Window.described)
@settings(max_examples=examples(8), deadline=None)
@given(epochs=EPOCHS, drift=st.integers(0, 40))
def test_p6_subtasks_agree_with_the_model_over_random_streams_cuts_and_rescales(
    window: Window, epochs: list[tuple[list[Row], int]], drift: int
) -> None:
    pipeline = Pipeline(operator=replace(OPERATOR, window=window))
    admitted: list[Admitted] = []
    late = 0
    for number, (drawn, parallelism) in enumerate(epochs):
        rows = [shifted(row, number * drift) for row in drawn]
        for row in rows:
            if is_late(row, pipeline.watermark, window):
                late += 1
            else:
                admitted.append(Admitted(row, pipeline.watermark))
        pipeline.run(rows, parallelism=parallelism)
    reports = pipeline.run([], parallelism=2, watermark=FAR)
    assert as_model(pipeline.output) == model_output(admitted, window)
    assert pipeline.late == late
    assert len(admitted) + pipeline.late == pipeline.rows_in
    assert sum(report.state_files for report in reports) == 0


def shifted(row: Row, by: int) -> Row:
    time = None if row.time is None else row.time + by
    return Row(row.name, row.zone, time, row.flag, row.i, row.f, row.d)


@settings(max_examples=examples(8), deadline=None)
@given(epochs=EPOCHS, seed=st.integers(0, 1 << 32), piece=st.integers(1, 6))
def test_p6_any_order_inside_a_batch_gives_the_same_names_and_reports(
    epochs: list[tuple[list[Row], int]], seed: int, piece: int
) -> None:
    shuffle = random.Random(seed).shuffle
    one, other = Pipeline(), Pipeline()
    for rows, parallelism in epochs:
        shuffled = list(rows)
        shuffle(shuffled)
        expected = one.run(rows, parallelism=parallelism)
        found = other.run(shuffled, parallelism=parallelism, piece=piece)
        assert [report.to_bytes() for report in found] == [report.to_bytes() for report in expected]
    assert [info.path for info in one.store.list("")] == [info.path for info in other.store.list("")]


@settings(max_examples=examples(8), deadline=None)
@given(epochs=EPOCHS, parallelism=st.integers(2, 5))
def test_p6_any_parallelism_gives_the_same_output_and_folded_state_after_every_epoch(
    epochs: list[tuple[list[Row], int]], parallelism: int
) -> None:
    single, many = Pipeline(), Pipeline()
    for rows, changing in epochs:
        single.run(rows)
        many.run(rows, parallelism=min(changing, parallelism))
        assert as_model(single.output) == as_model(many.output)
        # As text, in which a NaN equals a NaN.
        assert repr(single.state().to_pylist()) == repr(many.state().to_pylist())
        single.output.clear()
        many.output.clear()


def moderate_rows(random_: random.Random, rows: int, around: int) -> list[Row]:
    return [
        Row(
            name=random_.choice(["a", "b", "c", None]),
            zone=random_.choice([1.0, 2.5, None]),
            time=around + random_.randint(-30, 10) if random_.random() > 0.02 else None,
            flag=random_.choice([True, None]),
            i=random_.choice([None, random_.randint(-1000, 1000)]),
            f=random_.choice([None, random_.uniform(-100, 100)]),
            d=random_.choice([None, Decimal(random_.randint(-9999, 9999)) / 100]),
        )
        for _ in range(rows)
    ]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_closed_windows_equal_duckdbs_batch_answer_over_admitted_rows(seed: int) -> None:
    random_ = random.Random(seed)
    pipeline = Pipeline()
    admitted: list[Row] = []
    for epoch in range(10):
        rows = moderate_rows(random_, 150, around=epoch * 14 - 70)
        admitted += [row for row in rows if not is_late(row, pipeline.watermark)]
        pipeline.run(rows, parallelism=random_.randint(1, 4), piece=40)
    pipeline.run([], watermark=FAR)
    batch = pa.Table.from_batches(batches_of(admitted, piece=10_000))
    with duck.cursor() as connection:
        connection.register("batch", batch)
        expected = connection.sql(
            """
            select name, zone, (floor((epoch_us(_time) - 3) / 10.0) * 10 + 3)::bigint as start, start + 10 as finish,
                   count(*), count(_a1), sum(_a2)::bigint, fsum(_a3), sum(_a4)
            from batch group by all order by all
            """
        ).fetchall()
    found = [(*group, *values) for group, values in as_model(pipeline.output).items()]
    assert 0 < pipeline.late < pipeline.rows_in
    assert len(found) == len(expected)
    nulls_last = sorted(found, key=lambda row: [(value is None, value) for value in row[:4]])
    for row, other in zip(nulls_last, expected, strict=True):
        assert row[:7] == other[:7]
        assert row[7] == (None if other[7] is None else pytest.approx(other[7], rel=1e-12, abs=1e-9))
        assert row[8] == other[8]


@pytest.mark.parametrize("windows", [30, pytest.param(100, marks=pytest.mark.long)])
def test_state_is_released_and_files_stay_bounded_over_many_windows(windows: int) -> None:
    random_ = random.Random(7)
    pipeline = Pipeline()
    for epoch in range(windows + 20):
        # Rows are spread over several windows, so that a window lives over several epochs.
        reports = pipeline.run(moderate_rows(random_, 20, around=epoch * 10), parallelism=1 + epoch // 10 % 3)
        for report in reports:
            # A rescale lists the files of several earlier subtasks until the next merge.
            assert report.state_files <= MAX_FILES
        if epoch % 10:
            continue
        first_open = OPERATOR.window.first_open(-FAR if pipeline.watermark is None else pipeline.watermark)
        bins = [_microseconds(value) for value in pipeline.state()["_time"].to_pylist()]
        assert all(start >= first_open for start in bins)
        assert len(set(bins)) <= 12
    starts = {row["window_start"] for row in pipeline.output}
    assert len(starts) > windows
    total = sum(report.state_rows for report in pipeline.run([], parallelism=1))
    assert total < 500
