"""Diagram of the runs and lineages of a job: a lane per lineage, a bar per run, an arrow per fork.

The horizontal axis shows record numbers. Savepoints are flags at the epochs that they pin.
"""

from dataclasses import dataclass

from markupsafe import Markup

from statebed.inspect.lineages import LineageSummary, RunSummary
from statebed.inspect.savepoints import SavepointSummary
from statebed.present import units
from statebed.ui import visible_text

_WIDTH = 1200.0
_LEFT = 8.0
_LANE = 46.0
_TOP = 14.0
_BAR = 12.0
_FLAG = "v-13 h9 l-3 3.5 l3 3.5 h-9"


@dataclass(frozen=True)
class History:
    """Contents of the diagram; runs in ascending order, lineages in the order in which they began."""

    runs: tuple[RunSummary, ...]
    lineages: tuple[LineageSummary, ...]
    savepoints: tuple[SavepointSummary, ...]
    link: str
    """Path under which epochs are linked."""

    @property
    def span(self) -> tuple[int, int]:
        """First and last record number shown."""
        if not self.runs:
            return (1, 1)
        last = max(run.last_epoch or run.run for run in self.runs)
        return (self.runs[0].run, max(last, self.runs[0].run))

    @property
    def described(self) -> str:
        first, last = self.span
        return (
            f"{units.plural(len(self.lineages), 'lineage')} with {units.plural(len(self.runs), 'run')}, "
            f"records {first:,} to {last:,}"
        )

    def drawn(self) -> Markup:
        """Render the diagram as SVG."""
        height = _TOP + len(self.lineages) * _LANE + 8
        parts = [*self._forks(), *self._runs(), *self._flags(), *self._names()]
        frame = Markup('<svg class="history" viewBox="0 0 {:.0f} {:.0f}" role="img" aria-label="{}">{}</svg>')
        return frame.format(_WIDTH, height, self.described, Markup("").join(parts))

    def _x(self, number: float) -> float:
        first, last = self.span
        share = (number - first) / max(last + 1 - first, 1)
        return _LEFT + (_WIDTH - 2 * _LEFT) * min(max(share, 0.0), 1.0)

    def _y(self, lineage: str) -> float:
        lanes = [line.lineage for line in self.lineages]
        return _TOP + 22 + (lanes.index(lineage) if lineage in lanes else 0) * _LANE

    def _kept_until(self, run: RunSummary) -> int:
        lane = next((lineage for lineage in self.lineages if lineage.lineage == run.lineage), None)
        if lane is None or lane.status == "current":
            return run.last_epoch or run.run
        return lane.kept_until or 0

    def _runs(self) -> list[Markup]:
        bar = Markup(
            '<a href="{}/{}"><rect class="run {}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{}" rx="3">'
            "<title>{}</title></rect></a>"
        )
        parts = []
        for run in self.runs:
            last = run.last_epoch or run.run
            kept = min(max(self._kept_until(run), run.run - 1), last)
            text = f"run {run.run:,}, to {last:,}, {run.status}\n{units.instant(run.start_time_us)}"
            for first, end, style in ((run.run, kept, "kept"), (kept + 1, last, "left")):
                if end >= first:
                    x, wide = self._x(first), self._x(end + 1) - self._x(first)
                    y = self._y(run.lineage)
                    parts.append(bar.format(self.link, first, style, x, y, max(wide - 1, 2.0), _BAR, text))
        return parts

    def _forks(self) -> list[Markup]:
        path = Markup('<path class="fork" d="M{:.1f} {:.1f} C{:.1f} {:.1f} {:.1f} {:.1f} {:.1f} {:.1f}"/>')
        parts = []
        for lane in self.lineages[1:]:
            origin = self._lane_at(lane)
            if origin is None:
                continue
            run = next((candidate for candidate in self.runs if candidate.lineage == lane.lineage), None)
            if run is not None:
                x1, y1 = self._x(lane.base + 1), self._y(origin) + _BAR
                x2, y2 = self._x(run.run), self._y(lane.lineage) + _BAR / 2
                parts.append(path.format(x1, y1, x1, y2, x1, y2, x2, y2))
        return parts

    def _lane_at(self, lane: LineageSummary) -> str | None:
        """Return the lineage that contains the epoch from which `lane` forked, or None."""
        for run in reversed(self.runs):
            if run.lineage != lane.lineage and run.run <= lane.base <= (run.last_epoch or run.run):
                return run.lineage
        return None

    def _flags(self) -> list[Markup]:
        flag = Markup('<a href="{}/{}"><path class="flag" d="M{:.1f} {:.1f} {}"><title>savepoint {}</title></path></a>')
        first, last = self.span
        return [
            flag.format(
                self.link,
                savepoint.epoch,
                self._x(savepoint.epoch + 0.5),
                self._y(savepoint.lineage),
                _FLAG,
                visible_text.clipped(savepoint.savepoint),
            )
            for savepoint in self.savepoints
            if first <= savepoint.epoch <= last
        ]

    def _names(self) -> list[Markup]:
        text = Markup('<text class="tick" x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>')
        first, last = self.span
        parts = [text.format(_LEFT, 12, "start", f"record {first:,}")]
        parts.append(text.format(_WIDTH - _LEFT, 12, "end", f"{last:,}"))
        for lane in self.lineages:
            run = next((candidate for candidate in self.runs if candidate.lineage == lane.lineage), None)
            x = min(self._x(run.run if run else first), _WIDTH * 0.72)
            words_of = f"lineage {visible_text.clipped(lane.lineage.lstrip('0') or lane.lineage, 40)}, {lane.status}"
            parts.append(text.format(x, self._y(lane.lineage) + _BAR + 12, "start", words_of))
        return parts
