"""Charts as SVG, rendered on the server: bars and lines over the epochs of a job.

Geometry is in attributes, colours are in the style sheet, which enlarges labels on small screens; the layout leaves
room for that. Hovering over an epoch shows all its values.
"""

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from statebed.present import units
from statebed.ui import visible_text

WIDTH = 560.0
HEIGHT = 170.0
_TOP = 16.0
_BOTTOM = 148.0
_LEFT = 70.0
"""Width of the labels of the vertical axis. Labels of times are longer and are drawn inside the plot."""
_MIN_SLOTS = 12
_ENOUGH = 5
"""Minimum number of values needed to detect outliers."""
_FAR = 2.5
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_TIME_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400)
_SECOND = 1_000_000
_DAY = 86_400.0 * _SECOND


class ChartShape(enum.Enum):
    """Mark used to draw values."""

    BARS = "bars"
    LINES = "lines"


class Unit(enum.Enum):
    """Unit of values, which determines their format."""

    COUNT = "count"
    BYTES = "bytes"
    DURATION = "duration"
    TIME = "time"

    def text(self, value: float | None) -> str:
        if self is Unit.TIME:
            return units.instant(None if value is None else int(value))
        return _TEXTS[self](value)


_TEXTS: dict[Unit, Callable[[float | None], str]] = {
    Unit.COUNT: units.short,
    Unit.BYTES: units.size,
    Unit.DURATION: units.duration,
}


@dataclass(frozen=True)
class Series:
    """Named values, one per epoch; None if unknown."""

    name: str
    values: tuple[float | None, ...]
    colour: int
    """Index into the palette of the style sheet."""

    @property
    def last(self) -> float | None:
        return next((value for value in reversed(self.values) if value is not None), None)


@dataclass(frozen=True)
class Chart:
    """One chart."""

    name: str
    """Name of its element in the page."""
    title: str
    about: str
    epochs: tuple[int, ...]
    series: tuple[Series, ...]
    unit: Unit
    shape: ChartShape = ChartShape.LINES
    limit: float | None = None
    """Limit to draw as a line, such as a budget."""
    limit_name: str = ""

    @property
    def is_empty(self) -> bool:
        return all(value is None for series in self.series for value in series.values)

    @property
    def latest(self) -> str:
        """Newest value, for the heading."""
        known = [series.last for series in self.series if series.last is not None]
        if not known:
            return units.NOTHING
        if self.shape is ChartShape.BARS:
            newest = [series.values[-1] or 0.0 for series in self.series]
            return self.unit.text(sum(newest))
        return self.unit.text(known[0])

    @property
    def described(self) -> str:
        """Description of the chart for screen readers."""
        parts = [
            f"{visible_text.clipped(series.name, 60)} {self.unit.text(series.last)}"
            for series in self.series
            if series.last is not None
        ]
        return f"{self.title}, {len(self.epochs)} epochs; newest: {', '.join(parts) or 'unknown'}"

    def drawn(self, link: str) -> Markup:
        """Render the chart as SVG; `link` is the path under which epochs are linked."""
        return _Drawing(self, link).svg()


class _Drawing:
    """Layout of one chart."""

    def __init__(self, chart: Chart, link: str) -> None:
        self.chart = chart
        self.link = link
        self.left = 0.0 if chart.unit is Unit.TIME else _LEFT
        self.slot = (WIDTH - self.left) / max(len(chart.epochs), _MIN_SLOTS)
        self.low, self.high, self.ticks = _axis(chart)

    def svg(self) -> Markup:
        bodies = self._bars() if self.chart.shape is ChartShape.BARS else self._lines()
        frame = Markup(
            '<svg class="chart" viewBox="0 0 {:.0f} {:.0f}" role="img" aria-label="{}" focusable="false">{}</svg>'
        )
        parts = [*self._grid(), *bodies, *self._limit(), *self._labels(), *self._hits()]
        return frame.format(WIDTH, HEIGHT, self.chart.described, Markup("").join(parts))

    def _y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return _BOTTOM - (_BOTTOM - _TOP) * min(max(share, 0.0), 1.0)

    def _x(self, place: int) -> float:
        return self.left + (place + 0.5) * self.slot

    def _grid(self) -> list[Markup]:
        line = Markup('<line class="grid" x1="{:.0f}" x2="{:.0f}" y1="{:.1f}" y2="{:.1f}"/>')
        return [line.format(self.left, WIDTH, self._y(tick), self._y(tick)) for tick in self.ticks]

    def _labels(self) -> list[Markup]:
        text = Markup('<text class="tick" x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>')
        x, below, anchor = (self.left - 8, 4.0, "end") if self.left else (2.0, -3.5, "start")
        marks = [text.format(x, self._y(tick) + below, anchor, self.chart.unit.text(tick)) for tick in self.ticks]
        epochs = self.chart.epochs
        if epochs:
            marks.append(text.format(self.left, HEIGHT - 5, "start", f"epoch {epochs[0]:,}"))
        if len(epochs) > 1:
            end = self._x(len(epochs) - 1) + self.slot / 2
            marks.append(text.format(max(end, WIDTH * 0.5), HEIGHT - 5, "end", f"{epochs[-1]:,}"))
        return marks

    def _bars(self) -> list[Markup]:
        """Draw all bars of a series as one path, because a page has many bars."""
        path = Markup('<path class="fill c{}" d="{}"/>')
        wide = max(self.slot * 0.8, self.slot - 2)
        bars: dict[int, list[str]] = {series.colour: [] for series in self.chart.series}
        cuts: list[Markup] = []
        for place in range(len(self.chart.epochs)):
            below = 0.0
            for series in self.chart.series:
                value = series.values[place]
                if value:
                    top, bottom = self._y(below + value), self._y(below)
                    corner = f"M{self._x(place) - wide / 2:.1f} {top:.2f}"
                    bars[series.colour].append(f"{corner}h{wide:.1f}v{bottom - top:.2f}h-{wide:.1f}z")
                    below += value
            if below > self.high:
                cuts += self._cut(place, below)
        return [*(path.format(colour, "".join(parts)) for colour, parts in bars.items() if parts), *cuts]

    def _cut(self, place: int, whole: float) -> list[Markup]:
        """Mark a bar that exceeds the plot with a gap and its value."""
        gap = Markup('<path class="gap" d="M{:.1f} {:.1f} l{:.1f} -5"/>')
        text = Markup('<text class="tick" x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>')
        x, anchor = (self._x(place), "middle") if place > 1 else (self.left + place * self.slot, "start")
        return [
            gap.format(self._x(place) - self.slot / 2, _TOP + 12, self.slot),
            text.format(x, _TOP - 5, anchor, self.chart.unit.text(whole)),
        ]

    def _lines(self) -> list[Markup]:
        path = Markup('<path class="line {} c{}" d="{}"/>')
        dot = Markup('<circle class="dot c{}" cx="{:.1f}" cy="{:.1f}" r="2.5"/>')
        # A single line needs no dashes to be distinguished.
        style = "dashed" if len(self.chart.series) > 1 else "solid"
        drawn = []
        for series in self.chart.series:
            pieces: list[str] = []
            gap = True
            for place, value in enumerate(series.values):
                if value is not None:
                    pieces.append(f"{'M' if gap else 'L'}{self._x(place):.1f} {self._y(value):.1f}")
                gap = value is None
            if pieces:
                drawn.append(path.format(style, series.colour, " ".join(pieces)))
            if series.last is not None:
                place = max(place for place, value in enumerate(series.values) if value is not None)
                drawn.append(dot.format(series.colour, self._x(place), self._y(series.last)))
        return drawn

    def _limit(self) -> list[Markup]:
        if self.chart.limit is None:
            return []
        y = self._y(self.chart.limit)
        line = Markup('<line class="limit" x1="{:.0f}" x2="{:.0f}" y1="{:.1f}" y2="{:.1f}"/>')
        text = Markup('<text class="tick" x="{:.0f}" y="{:.1f}" text-anchor="end">{} {}</text>')
        label = text.format(WIDTH - 2, y - 3.5, self.chart.limit_name, self.chart.unit.text(self.chart.limit))
        return [line.format(self.left, WIDTH, y, y), label]

    def _hits(self) -> list[Markup]:
        """Draw the hover areas. Only the first chart has links, because a page has many epochs."""
        hit = Markup('<rect class="hit" x="{:.1f}" y="0" width="{:.1f}" height="{:.0f}"><title>{}</title></rect>')
        link = Markup('<a href="{}/{}" tabindex="-1">{}</a>')
        areas = []
        for place, epoch in enumerate(self.chart.epochs):
            area = hit.format(self.left + place * self.slot, self.slot, _BOTTOM, self._told(place))
            areas.append(link.format(self.link, epoch, area) if self.chart.shape is ChartShape.BARS else area)
        return areas

    def _told(self, place: int) -> str:
        chart = self.chart
        known = [(line.name, line.values[place]) for line in chart.series if line.values[place] is not None]
        lines = [f"{visible_text.clipped(name, 60)}: {chart.unit.text(value)}" for name, value in known]
        if chart.shape is ChartShape.BARS and len(known) > 1:
            lines.append(f"together: {chart.unit.text(sum(value or 0.0 for _, value in known))}")
        return "\n".join([f"epoch {chart.epochs[place]:,}", *(lines or ["unknown"])])


def _axis(chart: Chart) -> tuple[float, float, Sequence[float]]:
    """Return the minimum and maximum of the vertical axis, and the values of its grid lines."""
    values = _reached(chart)
    if chart.unit is Unit.TIME:
        low, high = min(values, default=0.0), max(values, default=1.0)
        room = max((high - low) * 0.05, float(_SECOND))
        return low - room, high + room, (low, high) if high > low else (low,)
    greatest = max([_usual(values) if chart.shape is ChartShape.BARS else max(values, default=0.0), chart.limit or 0.0])
    step = _nice_step(greatest / 3, chart.unit)
    count = max(1, math.ceil(greatest / step))
    # Leave room at the top for the label of the last grid line.
    return 0.0, max(count * step, greatest * 1.02), [step * number for number in range(count + 1)]


def _usual(values: Sequence[float]) -> float:
    """Return the largest value, or less if it is an outlier that would flatten all other bars."""
    ordered = sorted(values)
    if len(ordered) < _ENOUGH:
        return max(values, default=0.0)
    return min(ordered[-1], _FAR * ordered[int(len(ordered) * 0.9) - 1])


def _reached(chart: Chart) -> list[float]:
    if chart.shape is ChartShape.LINES:
        return [value for series in chart.series for value in series.values if value is not None]
    return [sum(series.values[place] or 0.0 for series in chart.series) for place in range(len(chart.epochs))]


def _nice_step(rough: float, unit: Unit) -> float:
    if rough <= 0:
        return 1.0
    if unit is Unit.DURATION and rough >= _SECOND:
        steps = [step for step in _TIME_STEPS if step * _SECOND >= rough]
        if steps:
            return float(steps[0] * _SECOND)
        return _nice_step(rough / _DAY, Unit.COUNT) * _DAY
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(step * power for step in _STEPS if step * power >= rough * 0.999)
    return max(step, 1.0) if unit is not Unit.DURATION else step
