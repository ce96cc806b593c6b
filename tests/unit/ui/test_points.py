"""Records as points: where time went, what state and memory there is, and that nothing of it is needed."""

import dataclasses

from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.chain import Chain
from statebed.inspect.operator_names import OperatorNames
from statebed.inspect.records import unreadable
from statebed.ui.overview import charts, liveness, tiles
from statebed.ui.points import Point, memory, phases, point_of, totals, with_abandoned

SECOND = 1_000_000
NOON_US = 1_767_268_800 * SECOND


def record(epoch: int, *, figures: pb.EpochFigures | None = None, took_us: int = SECOND) -> pb.CheckpointMetadata:
    finish = NOON_US + epoch * 10 * SECOND
    made = pb.CheckpointMetadata(
        job_id="rides",
        epoch=epoch,
        kind=pb.EPOCH,
        status=pb.COMPLETE,
        base=epoch - 1,
        run=1,
        start_time_us=finish - took_us,
        finish_time_us=finish,
        epoch_time_us=finish - took_us,
        operators=[
            pb.OperatorEntry(
                operator_id="per_minute",
                rows_in=100,
                rows_late=2,
                inputs=[pb.InputWatermark(input="input", watermark_us=finish - 61 * SECOND)],
            )
        ],
    )
    if figures is not None:
        made.figures.CopyFrom(figures)
    return made


def test_commit_and_publish_are_told_by_the_record_that_follows() -> None:
    first = point_of(record(2, figures=pb.EpochFigures(phases_us={"read": 300_000, "write": 200_000})))
    second = point_of(record(3, figures=pb.EpochFigures(previous_phases_us={"commit": 50_000, "publish": 20_000})))
    assert phases([first, second]) == [
        {"read": 300_000, "write": 200_000, "commit": 50_000, "publish": 20_000, "other": 430_000},
        {"other": SECOND},
    ]


def test_phases_of_another_version_are_not_lost() -> None:
    point = point_of(record(2, figures=pb.EpochFigures(phases_us={"read": 900_000, "dreaming": 300_000})))
    assert phases([point]) == [{"read": 900_000, "other": 300_000}]


def test_state_and_memory_are_summed_and_unknown_without_figures() -> None:
    table = pb.TableFigures(table="t", rows=5, memory_bytes=10, store_bytes=20, files=2, spills=1)
    figures = pb.EpochFigures(
        operators=[
            pb.OperatorFigures(operator_id="a", tables=[table, table]),
            pb.OperatorFigures(operator_id="b", tables=[table]),
        ],
        hosts=[
            pb.HostFigures(host="h", budget_bytes=100, peak_bytes=60, holders={"x": 40, "y": 20}, cache_bytes=7),
            pb.HostFigures(host="h", budget_bytes=100, peak_bytes=30, holders={"x": 30}, cache_bytes=7),
        ],
    )
    whole, one = totals(figures), totals(figures, "a")
    assert whole is not None
    assert one is not None
    assert (whole.rows, whole.files, one.store_bytes) == (15, 6, 40)
    assert totals(figures, "gone") is None
    held = memory(figures)
    assert held is not None
    assert (held.budget_bytes, held.peak_bytes, held.holders) == (200, 90, (("x", 70), ("y", 20)))
    assert held.cache_bytes == 7  # two processes share the cache of their host
    assert totals(None) is None
    assert memory(None) is None


def test_a_job_without_figures_has_the_plots_that_records_alone_can_fill() -> None:
    points = [point_of(record(epoch)) for epoch in range(2, 6)]
    names = [chart.name for chart in charts(points, OperatorNames({}))]
    assert names == ["phases", "rows", "rates", "lag", "watermark"]
    assert charts(points, OperatorNames({}))[0].series[0].name == "whole epoch"
    assert [chart.latest for chart in charts(points, OperatorNames({}))] == [
        "1 s",
        "100",
        "100",
        "1 min",
        "2026-01-01 11:59:49",
    ]
    assert [tile.value for tile in tiles(points, None, now_us=NOON_US + 60 * SECOND)] == [
        "5", "100/s", "12.9/s", "1 s", "1 min", "-", "8",
    ]  # fmt: skip


def test_a_job_moves_until_it_is_silent_for_long_or_was_stopped() -> None:
    points = [point_of(record(epoch)) for epoch in range(2, 6)]
    last = NOON_US + 50 * SECOND
    assert liveness(points, now_us=last + 49 * SECOND) == "active"
    assert liveness(points, now_us=last + 51 * SECOND) == "quiet"
    stopped = record(6)
    stopped.status = pb.STOPPED
    assert liveness([*points, point_of(stopped)], now_us=last) == "stopped"
    assert liveness([Point(unreadable(7, status="damaged", problem="torn"))], now_us=last) == "damaged"


def test_epochs_that_a_fork_left_behind_are_abandoned() -> None:
    points = [point_of(record(epoch)) for epoch in (2, 3, 4)]
    fork = dataclasses.replace(points[0].summary, epoch=5, kind="run_start", base=2)
    shown = with_abandoned([*points, Point(fork)], Chain(((6, 6), (1, 2)), floor=0))
    assert [point.summary.status for point in shown] == ["complete", "abandoned", "abandoned", "complete"]
