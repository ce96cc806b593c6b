"""Results of benchmarks: one line each, as a table or as JSON, with the targets that they are held to."""

import json
import sys
from dataclasses import asdict, dataclass, field

_LARGE = 1000


@dataclass(frozen=True)
class Result:
    """A comparison. A ratio above 1 means that ours is better."""

    case: str
    baseline: str
    metric: str
    ours: float
    theirs: float
    ratio: float
    unit: str
    target: float | None = None
    """Smallest ratio that meets the goal, or None if there is no goal."""

    @property
    def missed(self) -> bool:
        return self.target is not None and self.ratio < self.target


@dataclass(frozen=True)
class Figure:
    """One measured or derived number, without anything to compare it with."""

    case: str
    metric: str
    value: float
    unit: str


def faster(
    case: str, baseline: str, metric: str, *, ours: float, theirs: float, unit: str, target: float | None = None
) -> Result:
    """Return the result of two speeds, where more is better."""
    return Result(case, baseline, metric, ours, theirs, ours / theirs, unit, target)


def smaller(
    case: str, baseline: str, metric: str, *, ours: float, theirs: float, unit: str, target: float | None = None
) -> Result:
    """Return the result of two costs (time, bytes), where less is better."""
    return Result(case, baseline, metric, ours, theirs, theirs / max(ours, 1e-9), unit, target)


def is_chosen(case: str, only: str) -> bool:
    """Return whether the name of a case contains the text of --case, or one of its parts between '|'."""
    return any(part in case for part in only.split("|"))


def shown_number(value: float) -> str:
    """Return a number with four digits at least, without an exponent."""
    return f"{value:,.4g}" if abs(value) < _LARGE else f"{value:,.0f}"


@dataclass
class Report:
    """Prints results as they come, and remembers the targets that were missed."""

    as_json: bool
    missed: list[Result] = field(default_factory=list)
    kept: list[Result | Figure] = field(default_factory=list)
    """All results and figures so far."""
    _printed: bool = False

    def add(self, result: Result) -> None:
        self.kept.append(result)
        if result.missed:
            self.missed.append(result)
        print(_json(result) if self.as_json else self._line(result), flush=True)

    def figure(self, figure: Figure, *, shown: bool = True) -> None:
        """Print a figure; one that is not `shown` is left out of the table."""
        self.kept.append(figure)
        if self.as_json:
            print(json.dumps(asdict(figure)), flush=True)
        elif shown:
            print(f"{figure.case:<30} {figure.metric:<62} {shown_number(figure.value):>22} {figure.unit}", flush=True)

    def note(self, text: str) -> None:
        """A remark for readers of the table."""
        if not self.as_json:
            print(text, flush=True)

    def finish(self, *, check: bool) -> int:
        """The exit status: 1 when targets are to be checked and one was missed."""
        for result in self.missed:
            print(
                f"MISSED: {result.case}, {result.metric} against {result.baseline}: "
                f"{result.ratio:.2f}x, goal {result.target:.2f}x",
                file=sys.stderr,
            )
        return 1 if check and self.missed else 0

    def _line(self, result: Result) -> str:
        head = ""
        if not self._printed:
            self._printed = True
            head = f"{'case':<44} {'baseline':<22} {'metric':<18} {'ours':>13} {'theirs':>13} {'ratio':>8}   unit\n"
        verdict = "" if result.target is None else f"  {'MISSED' if result.missed else 'ok'} (>= {result.target:.2f})"
        return (
            f"{head}{result.case:<44} {result.baseline:<22} {result.metric:<18} {result.ours:>13,.0f} "
            f"{result.theirs:>13,.0f} {result.ratio:>7.2f}x   {result.unit}{verdict}"
        )


def _json(result: Result) -> str:
    return json.dumps(
        {
            "case": result.case,
            "baseline": result.baseline,
            "metric": result.metric,
            "ours": round(result.ours, 3),
            "theirs": round(result.theirs, 3),
            "ratio": round(result.ratio, 3),
            "unit": result.unit,
        }
    )
