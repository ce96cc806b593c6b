"""Overview of a job from its newest points: liveness, key figures, charts. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from statebed.inspect.operator_names import OperatorNames
from statebed.inspect.run_states import RunReport, RunState
from statebed.present import units
from statebed.present.colours import PHASE_COLOURS
from statebed.ui.charts import Chart, ChartShape, Series, Unit
from statebed.ui.points import OTHER, Point, StateTotals, median, memory, phases, totals

ACTIVE = "active"
QUIET = "quiet"
_MIN_PATIENCE_US = 30_000_000
_PATIENCE = 5
_MAX_OPERATORS = 6
"""Maximum number of operators in a chart."""


@dataclass(frozen=True)
class Tile:
    """A figure with its name and a note below it."""

    name: str
    value: str
    about: str = ""
    is_warning: bool = False


def liveness(points: Sequence[Point], report: RunReport | None = None, *, now_us: int) -> str:
    """Return the status of a job in one word: that of its run if known, else whether its log advances."""
    readable = [point for point in points if point.is_readable]
    if not readable:
        return "damaged"
    if report is not None and report.state not in {RunState.UNKNOWN, RunState.SUPERSEDED}:
        state: str = report.state.value
        return state
    newest = readable[-1].summary
    if newest.status in {"stopped", "drained"}:
        return newest.status
    times = [point.summary.finish_time_us or 0 for point in readable]
    usual = median(after - before for before, after in pairwise(times)) or 0
    patience = max(_MIN_PATIENCE_US, _PATIENCE * usual)
    return ACTIVE if now_us - times[-1] <= patience else QUIET


def tiles(points: Sequence[Point], state: StateTotals | None, *, now_us: int) -> list[Tile]:
    """Return the key figures of a job; `points` are readable and in ascending order."""
    newest = points[-1].summary
    epochs = [point for point in points if point.is_epoch]
    last = epochs[-1] if epochs else None
    took = [point.summary.duration_us for point in epochs]
    late = sum(point.summary.rows_late for point in epochs)
    rows = sum(point.summary.rows_in for point in epochs)
    span = f"of the last {units.plural(len(epochs), 'epoch')}"
    held = None if last is None else memory(last.figures)
    shown = [
        Tile("newest record", units.number(newest.epoch), units.ago(newest.finish_time_us, now_us=now_us)),
        Tile("processing rate", units.rate(_rate(epochs)), f"while epochs ran; {units.short(rows)} rows {span}"),
        Tile("input rate", units.rate(_input_rate(epochs)), "rows by the clock, pauses included"),
        Tile("epoch duration", units.duration(median(took)), f"median {span}"),
        Tile("watermark lag", units.duration(last.lag_us if last else None), _watermark(last)),
        Tile("state", units.size(_size(state)), _state(state)),
        Tile("late rows", units.number(late), span, is_warning=late > 0),
    ]
    if held is not None:
        share = held.peak_bytes / held.budget_bytes if held.budget_bytes else 0.0
        used = f"{units.percent(share)} of {units.size(held.budget_bytes)} at the peak"
        shown.append(Tile("memory", units.size(held.peak_bytes), used, is_warning=share > 1))
    return shown


def _rate(epochs: Sequence[Point]) -> float | None:
    """Return rows per second of processing time, over the epochs that had rows."""
    busy = [point.summary for point in epochs if point.summary.rows_in]
    took = sum(summary.duration_us for summary in busy)
    return sum(summary.rows_in for summary in busy) / took * 1e6 if took else None


def _input_rate(epochs: Sequence[Point]) -> float | None:
    """Return rows per second of wall-clock time, from the first of the epochs to the last."""
    if not epochs:
        return None
    first, last = epochs[0].summary, epochs[-1].summary
    passed = (last.finish_time_us or 0) - (first.finish_time_us or 0) + first.duration_us
    return sum(point.summary.rows_in for point in epochs) / passed * 1e6 if passed > 0 else None


def _rates(shown: Sequence[Point]) -> tuple[Series, ...]:
    """Return rows per second of each epoch, by its processing time and by the time since the previous epoch."""
    work = tuple(_per_second(point.summary.rows_in, point.summary.duration_us) for point in shown)
    times = [None, *(point.summary.finish_time_us for point in shown[:-1])]
    clock = tuple(
        _per_second(point.summary.rows_in, (point.summary.finish_time_us or 0) - before if before else 0)
        for point, before in zip(shown, times, strict=True)
    )
    return Series("processed", work, 2), Series("input", clock, 3)


def _per_second(rows: int, micros: int) -> int | None:
    return round(rows / micros * 1e6) if micros > 0 else None


def _size(state: StateTotals | None) -> int | None:
    return None if state is None else state.store_bytes


def _state(state: StateTotals | None) -> str:
    if state is None:
        return ""
    return f"{units.plural(state.files, 'file')}, {units.short(state.rows)} rows"


def _watermark(point: Point | None) -> str:
    if point is None or point.summary.watermark_us is None:
        return "no watermark"
    if point.newest_event_us is not None:
        return f"{units.duration(point.newest_event_us - point.summary.watermark_us)} behind the newest event"
    return f"at {units.instant(point.summary.watermark_us)}"


# ---- plots -----------------------------------------------------------------------------------------------------------


def charts(points: Sequence[Point], names: OperatorNames) -> list[Chart]:
    """Return the charts of a job, without those whose figures its records lack."""
    shown = [point for point in points if point.is_epoch]
    if not shown:
        return []
    held = [totals(point.figures) for point in shown]
    memories = [memory(point.figures) for point in shown]
    budget = next(
        (sample.budget_bytes for sample in reversed(memories) if sample is not None and sample.budget_bytes), None
    )
    epochs = tuple(point.epoch for point in shown)

    def lines(name: str, title: str, about: str, unit: Unit, *series: Series) -> Chart:
        return Chart(name, title, about, epochs, series, unit)

    def counted(name: str, value: Callable[[StateTotals], int], colour: int) -> Series:
        return Series(name, tuple(None if sample is None else value(sample) for sample in held), colour)

    peaks = Series("held", tuple(None if sample is None else sample.peak_bytes for sample in memories), 3)
    drawn = [
        _phases(points, shown),
        lines(
            "rows",
            "Rows per epoch",
            "In: rows read by operators. Out: rows emitted. Late: rows that arrived behind the watermark.",
            Unit.COUNT,
            Series("in", tuple(point.summary.rows_in for point in shown), 2),
            Series("out", tuple(point.summary.rows_out for point in shown), 3),
            Series("late", tuple(point.summary.rows_late for point in shown), 5),
        ),
        lines(
            "rates",
            "Rows per second",
            "Processed: rows of an epoch per second of processing. Input: per second since the previous epoch.",
            Unit.COUNT,
            *_rates(shown),
        ),
        lines(
            "lag",
            "Watermark lag",
            "Clock time minus the watermark of each operator.",
            Unit.DURATION,
            *_lags(shown, names),
        ),
        lines(
            "watermark",
            "Watermark",
            "Event time up to which windows are closed, and the maximum event time of all sources.",
            Unit.TIME,
            *_watermarks(shown, names),
        ),
        lines(
            "state",
            "State by tier",
            "Bytes at the end of each epoch. State in memory or on local disk is also in the store once committed.",
            Unit.BYTES,
            counted("in the store", lambda state: state.store_bytes, 2),
            counted("on local disk", lambda state: state.disk_bytes, 4),
            counted("in memory", lambda state: state.memory_bytes, 3),
        ),
        replace(
            lines("memory", "Peak memory", "Of all worker processes, against their budget.", Unit.BYTES, peaks),
            limit=budget,
            limit_name="budget",
        ),
        lines(
            "spills",
            "Spills and loads",
            "Pieces of state spilled from memory to local disk, and pieces loaded back.",
            Unit.COUNT,
            counted("spills", lambda state: state.spills, 5),
            counted("loads", lambda state: state.loads, 2),
        ),
        lines(
            "files",
            "Data files",
            "Live files of all tables.",
            Unit.COUNT,
            counted("files", lambda state: state.files, 2),
        ),
        lines(
            "debt",
            "Compaction debt",
            "Bytes that a full compaction would read.",
            Unit.BYTES,
            counted("debt", lambda state: state.compaction_debt_bytes, 4),
        ),
    ]
    return [chart for chart in drawn if not chart.is_empty]


def _phases(points: Sequence[Point], shown: Sequence[Point]) -> Chart:
    parts = {point.epoch: point_phases for point, point_phases in zip(points, phases(points), strict=True)}
    has_phases = any(name != OTHER for point_phases in parts.values() for name in point_phases)
    series = tuple(
        Series(name if has_phases else "whole epoch", tuple(parts[point.epoch].get(name, 0) for point in shown), colour)
        for name, colour in PHASE_COLOURS.items()
        if any(name in parts[point.epoch] for point in shown)
    )
    about = "Time of each epoch by phase. Commit and publish follow the processing and may overlap the next epoch."
    return Chart(
        "phases",
        "Epoch durations",
        about,
        tuple(point.epoch for point in shown),
        series,
        Unit.DURATION,
        ChartShape.BARS,
    )


def _names(shown: Sequence[Point]) -> list[str]:
    """Return the operators to show, those of the newest epochs first."""
    operators: dict[str, None] = {}
    for point in reversed(shown):
        operators |= dict.fromkeys(point.watermarks)
    return list(operators)[:_MAX_OPERATORS]


def _lags(shown: Sequence[Point], names: OperatorNames) -> tuple[Series, ...]:
    def lag(point: Point, name: str) -> int | None:
        mark = point.watermarks.get(name)
        return None if mark is None or point.epoch_time_us is None else max(point.epoch_time_us - mark, 0)

    return tuple(
        Series(names(name), tuple(lag(point, name) for point in shown), _LINES[number])
        for number, name in enumerate(_names(shown))
    )


def _watermarks(shown: Sequence[Point], names: OperatorNames) -> tuple[Series, ...]:
    marks = tuple(
        Series(names(name), tuple(point.watermarks.get(name) for point in shown), _LINES[number])
        for number, name in enumerate(_names(shown))
    )
    events = Series("newest event", tuple(point.newest_event_us for point in shown), 7)
    return (*marks, events) if events.last is not None else marks


_LINES = (2, 3, 4, 5, 6, 1)
"""Palette indexes of operators."""


def phase_bar(parts: dict[str, int]) -> list[tuple[str, int, int]]:
    """Return the phases of one epoch with their colours."""
    return [(name, colour, parts[name]) for name, colour in PHASE_COLOURS.items() if name in parts]
