"""The page about scale: what a job of a thousand subtasks does to S3, from the results of `python -m bench scale`."""

from collections.abc import Mapping, Sequence
from typing import Any

from bench.pages.svg import lines, number
from bench.result_files import Measured
from bench.scale.estimate import Target
from bench.scale.s3 import GETS_PER_SECOND, PRICES_OF, PUBLISHED, PUTS_PER_SECOND

IMAGES = "images/scale"
_CLOCKS = (" (S3)", " (loopback)")
_PLOTS = (
    (
        "time.svg",
        "Time by number of subtasks",
        "seconds",
        (
            "epoch of a subtask",
            "commit on the driver",
            "clean-up",
            "opening after a restart",
            "first epoch without copies",
        ),
    ),
    ("requests.svg", "Requests per epoch by number of subtasks", "requests", ("PUT per epoch", "GET per epoch")),
    (
        "dollars.svg",
        "Dollars per day by number of subtasks",
        "dollars",
        ("requests per day in dollars", "storage per day", "all per day"),
    ),
)
_TARGET = Target()
_HEAD = f"""# Scale

**This page is written by `make bench-docs` from the results of `python -m bench scale`; no figure in it is typed by
hand.**

Target, unless the command below says otherwise: {_TARGET.subtasks:,} subtasks, {_TARGET.state_bytes / 2**40:.0f} TiB of
state, epochs of {_TARGET.epoch_seconds:.0f} s, and {_TARGET.rows_per_second:,.0f} rows per second.

How far does the design go? The benchmark runs real subtasks, records, compaction rounds, clean-ups and restarts on a
store in memory that counts requests as S3 would: two jobs of a few subtasks for many epochs, one job of many subtasks
for a few epochs, and single subtasks with more state. No job of the target's size has been run: its figures are
formulas, fitted to some of the measured points and checked against the others.

- **Latencies**: {PUBLISHED.source}. Listings and bulk deletes are our estimates. Times with latencies measured at a
  real S3 server on loopback (seaweedfs) are given beside them.
- **Prices**: {PRICES_OF}. Requests of sinks, machines and traffic between regions are not included.
- **Assumptions**: one task slot per subtask, all subtasks of an epoch write at the same time, and every host keeps
  copies of its subtasks' files on local disk. A subtask has as much state and as many rows at every size.
"""
_OUTLOOK = f"""
## What would move the limits

- **Requests are the largest part of the bill.** A subtask writes three objects per epoch (delta, outbox, metadata)
  and reads each of them back. One object for all three would save two thirds of the PUT requests. Longer epochs save
  as much: requests per day are inversely proportional to their length.
- **Rate of one prefix.** S3 guarantees {PUTS_PER_SECOND:,} PUT and {GETS_PER_SECOND:,} GET requests per second for
  each partitioned prefix, and splits prefixes under steady load. All objects of an epoch share a prefix that begins
  with its number. A prefix per range of subtasks before the epoch would let S3 split them.
- **Metadata grows with files.** Each subtask writes the list of its files in every epoch. Larger base files, or
  metadata that refers to unchanged parts, would keep it small.
- **Opening** lists the folder of compacted files page by page. A folder per range of subtasks could be listed
  concurrently.
- **Clean-up** reads the metadata of every collected epoch, 64 objects at a time. Reports could name the files that
  each subtask added and dropped, and then nothing would have to be read.
- **A host without copies** reads most of its subtasks' state in the first epoch if keys are touched at random.
"""


def page(measured: Measured) -> tuple[str, dict[str, str]]:
    """Return the text of the page, and its pictures by file name."""
    figures = measured.rounds[-1]
    cases = [case for case in dict.fromkeys(figure["case"] for figure in figures) if "," not in case]
    text = [_HEAD, f"Command: `{measured.command}`.", ""]
    pictures: dict[str, str] = {}
    for case in cases:
        of_case = [figure for figure in figures if figure["case"] == case]
        text += [f"## {case.capitalize()}", "", *_table(of_case), "", "### Where it breaks", ""]
        text += [*_limits([figure for figure in figures if figure["case"] == f"{case}, limit"]), ""]
        text += [
            "### How good the formulas are",
            "",
            *_checks([f for f in figures if f["case"] == f"{case}, check"]),
            "",
        ]
        for file, title, unit, metrics in _PLOTS:
            name = f"{case.replace(' ', '-')}-{file}"
            pictures[name] = lines(
                f"{case.capitalize()}: {title[0].lower()}{title[1:]}",
                "Logarithmic; as much state and as many rows per subtask as in the table",
                {metric: _curve(figures, case, metric) for metric in metrics},
                unit=unit,
            )
            text += [f'<img src="{IMAGES}/{name}" alt="{title}" width="960">', ""]
    return "\n".join([*text, _OUTLOOK.strip(), ""]), pictures


def _curve(figures: Sequence[Mapping[str, Any]], case: str, metric: str) -> list[tuple[float, float]]:
    points = []
    for figure in figures:
        name, _, size = figure["case"].partition(", ")
        if name == case and size.endswith(" subtasks") and figure["metric"] == f"{metric} (S3)":
            points.append((float(size.removesuffix(" subtasks")), float(figure["value"])))
    return sorted(points)


def _table(figures: Sequence[Mapping[str, Any]]) -> list[str]:
    values: dict[str, dict[str, Mapping[str, Any]]] = {}
    for figure in figures:
        clock = next(clock for clock in _CLOCKS if figure["metric"].endswith(clock))
        values.setdefault(figure["metric"].removesuffix(clock), {})[clock] = figure
    rows = ["| what | on S3 | with loopback latencies |", "|---|---|---|"]
    for what, by_clock in values.items():
        shown = [_shown(by_clock.get(clock)) for clock in _CLOCKS]
        rows.append(f"| {what} | {shown[0]} | {shown[1]} |")
    return rows


def _limits(figures: Sequence[Mapping[str, Any]]) -> list[str]:
    values: dict[str, dict[str, Mapping[str, Any]]] = {}
    for figure in figures:
        what, _, kind = figure["metric"].rpartition(": ")
        values.setdefault(what, {})[kind] = figure
    rows = ["| limit | at this size | allowed | exceeded at |", "|---|---|---|---|"]
    for what, by_kind in values.items():
        at = float(by_kind["breaks at"]["value"])
        breaks = "no number of subtasks" if at == float("inf") else f"{number(at)} subtasks"
        rows.append(f"| {what} | {_shown(by_kind['now'])} | {_shown(by_kind['allowed'])} | {breaks} |")
    return rows


def _checks(figures: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = ["| what | predicted | measured | off by |", "|---|---|---|---|"]
    for predicted, measured in zip(figures[::2], figures[1::2], strict=True):
        what = predicted["metric"].rpartition(": ")[0]
        ours, real = float(predicted["value"]), float(measured["value"])
        rows.append(f"| {what} | {number(ours)} | {number(real)} | {abs(ours - real) / max(abs(real), 1e-9):.1%} |")
    return rows


def _shown(figure: Mapping[str, Any] | None) -> str:
    return "" if figure is None else f"{number(float(figure['value']))} {figure['unit']}".strip()
