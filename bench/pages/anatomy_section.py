"""Section about the way of a row: what each part adds, as a picture and a table, the JVM and Python apart."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bench.pages.svg import number, stacked
from bench.result_files import Measured

TITLE = "The way of a row"
_PROCESSES = ("JVM", "Python")
_WHOLE = "whole job"
_STATELESS = "job without state"
_INSIDE = "inside a subtask"
_SUBTASK_TITLE = "The parts inside a subtask"
_SUBTASK_PICTURE = "anatomy-subtask.svg"
_NOTE = (
    "Processor time per row that each part adds to the plan before it. A part below zero is within the noise of the "
    "JVM's compiler."
)
_SHOWN = {
    "planning": "planning of the batch",
    "read": "reading",
    "pipe": "rows to Arrow, pipe to Python",
    "route": "hash, split, encode, pipe back",
    "shuffle": "shuffle",
    "second pipe": "pipe to the subtask",
    _WHOLE: "state, output, commit",
}


def section(measured: Measured, images: str, machine: str) -> tuple[str, dict[str, str]]:
    """Return the text of the section, and its pictures by file name."""
    figures = [figure for results in measured.rounds for figure in results]
    inside = [figure for figure in figures if figure["case"].startswith(_INSIDE)]
    cases = list(dict.fromkeys(figure["case"] for figure in figures if figure not in inside))
    pictures, text = {}, [f"## {TITLE}: `{measured.benchmark}`", ""]
    text += [f"Command: `{measured.command}`. Rounds: {len(measured.rounds)}. {machine}", ""]
    text += [_NOTE, ""]
    rows = [
        (f"{label}, {case.partition(',')[0]}", [_median(figures, case, f"{part}, {process}") for process in _PROCESSES])
        for part, label in _SHOWN.items()
        for case in cases
        if _measures(figures, case, part)
    ]
    name = "anatomy.svg"
    pictures[name] = stacked(TITLE, "Processor microseconds per row that each part adds", _PROCESSES, rows)
    text += [f'<img src="{images}/{name}" alt="{TITLE}: microseconds by part; the table has the numbers" width="960">']
    text += ["", "| part | " + " | ".join(f"{case}: JVM | Python" for case in cases) + " |"]
    text += ["|---|" + "---|" * (2 * len(cases))]
    for part, label in _SHOWN.items():
        cells = [_cell(figures, case, f"{part}, {process}") for case in cases for process in _PROCESSES]
        text.append(f"| {label} | {' | '.join(cells)} |")
    whole = [_cell(figures, case, f"{_WHOLE}, {process} in all") for case in cases for process in _PROCESSES]
    text.append(f"| **the whole job** | {' | '.join(whole)} |")
    text += ["", "Time of the JVM in the whole job, by threads:", ""]
    groups = list(dict.fromkeys(_group(figure["metric"]) for figure in figures if "JVM: " in figure["metric"]))
    text += ["| threads | " + " | ".join(cases) + " |", "|---|" + "---|" * len(cases)]
    for group in groups:
        cells = [_cell(figures, case, f"{_WHOLE}, JVM: {group} in all") for case in cases]
        text.append(f"| {group} | {' | '.join(cells)} |")
    text += _ceiling(figures, cases)
    if inside:
        pictures[_SUBTASK_PICTURE], more = _parts_of_subtask(inside, images)
        text += more
    return "\n".join([*text, ""]), pictures


def _ceiling(figures: Sequence[Mapping[str, Any]], cases: Sequence[str]) -> list[str]:
    """Return the share of the ceiling that the job has in each case."""
    totals = {
        case: [_median(figures, case, f"{job} in all") for job in (_STATELESS, _WHOLE)]
        for case in cases
        if _values(figures, case, f"{_STATELESS} in all")
    }
    if not totals:
        return []
    text = ["", "A job without state reads the same rows, writes them to the outbox and commits every epoch:"]
    text += ["", "| case | job without state | whole job | share |", "|---|---|---|---|"]
    for case, (floor, whole) in totals.items():
        text.append(f"| {case} | {number(floor)} | {number(whole)} | {number(floor / whole)} |")
    return text


def _parts_of_subtask(inside: Sequence[Mapping[str, Any]], images: str) -> tuple[str, list[str]]:
    """Return a picture and a table of the parts inside a subtask."""
    case = inside[0]["case"]
    rows = [(part, [_median(inside, case, part)]) for part in dict.fromkeys(figure["metric"] for figure in inside)]
    picture = stacked(_SUBTASK_TITLE, "Processor microseconds per row", ("Python",), rows)
    text = ["", f"Inside a subtask of the running aggregate, without Spark ({case.partition(', ')[2]}):", ""]
    text += [f'<img src="{images}/{_SUBTASK_PICTURE}" alt="{_SUBTASK_TITLE}; the table has the numbers" width="960">']
    text += ["", "| part | microseconds per row |", "|---|---|"]
    text += [f"| {part} | {number(spent)} |" for part, (spent,) in rows]
    text += [f"| **all** | {number(sum(spent for _, (spent,) in rows))} |"]
    return picture, text


def _group(metric: str) -> str:
    return metric.partition("JVM: ")[2].removesuffix(" in all")


def _values(figures: Sequence[Mapping[str, Any]], case: str, metric: str) -> list[float]:
    return [float(figure["value"]) for figure in figures if figure["case"] == case and figure["metric"] == metric]


def _measures(figures: Sequence[Mapping[str, Any]], case: str, part: str) -> bool:
    return bool(_values(figures, case, f"{part}, JVM"))


def _median(figures: Sequence[Mapping[str, Any]], case: str, metric: str) -> float:
    return statistics.median(_values(figures, case, metric))


def _cell(figures: Sequence[Mapping[str, Any]], case: str, metric: str) -> str:
    values = _values(figures, case, metric)
    return number(statistics.median(values)) if values else ""
