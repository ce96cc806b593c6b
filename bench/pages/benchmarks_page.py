"""The page of benchmark results: tables, plots, machine, versions and commands, all from the result files."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.pages import anatomy_section
from bench.pages.svg import bars, number
from bench.result_files import Measured

IMAGES = "images/benchmarks"
TITLES = {
    "engine": "Read-modify-write of keyed state",
    "epochs": "The cost of an epoch",
    "subtask": "One epoch of a restored subtask",
    "memory": "State ten times the budget",
    "operators": "Operators without Spark against DuckDB's one-shot answer",
    "operators-idle": "All operators, on an idle machine",
    "latency": "Small epochs against batches that only pass rows on",
    "restart": "The first epoch on a new host",
    "spark": "Jobs on Spark against Spark's own state stores",
    "kafka": "From topic to topic against Spark's own stateful query",
    "nexmark": "Nexmark on Spark against Spark's own operators",
    "queries": "Queries of Spark and SQL text against the same jobs in our own API",
    "hotkeys": "One more row for a key with many values",
    "process": "Processes over whole batches",
}
HEAD = """# Benchmarks

**This page is written by `make bench-docs` from the files in `bench/results`; nothing in it is typed by hand.**
[How we measure](benchmark-methods.md) describes each benchmark, how it verifies its own results, and what was learned.
[Scale](scale.md) estimates jobs of a thousand subtasks.

A ratio above 1 means that statebed is better. Only ratios of the same run are comparable, because absolute figures
depend much more on the machine. With several rounds, a figure is the median, and *spread* is the least and the
greatest ratio. *Load* is the number of programs that were competing for the processor. To measure again and write this
page:

```bash
make bench BENCH="operators --quick --rounds 3 --save"
make bench-docs
```
"""


@dataclass(frozen=True)
class Row:
    """One comparison over all rounds."""

    case: str
    baseline: str
    metric: str
    unit: str
    ours: float
    theirs: float
    ratio: float
    lowest: float
    highest: float
    rounds: int
    target: float | None

    @property
    def label(self) -> str:
        return f"{self.case}, {self.baseline}"

    @property
    def spread(self) -> str:
        return f"{number(self.lowest)} to {number(self.highest)}" if self.rounds > 1 else "one round"

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        return f"{'met' if self.ratio >= self.target else '**missed**'} (goal {number(self.target)})"


def rows_of(measured: Measured) -> list[Row]:
    """Return the comparisons of a result file, in their order."""
    cases: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for results in measured.rounds:
        for result in results:
            if "ratio" in result:
                key = (result["case"], result["baseline"], _metric(result["metric"]))
                cases.setdefault(key, []).append(result)
    return [_row(*key, results) for key, results in cases.items()]


def _metric(metric: str) -> str:
    """Return the name of a metric without the size of a budget, which differs between rounds."""
    return metric.partition(":")[0]


def _row(case: str, baseline: str, metric: str, results: Sequence[Mapping[str, Any]]) -> Row:
    ratios = [float(result["ratio"]) for result in results]
    return Row(
        case=case,
        baseline=baseline,
        metric=metric,
        unit=results[0]["unit"],
        ours=statistics.median(float(result["ours"]) for result in results),
        theirs=statistics.median(float(result["theirs"]) for result in results),
        ratio=statistics.median(ratios),
        lowest=min(ratios),
        highest=max(ratios),
        rounds=len(results),
        target=results[0].get("target"),
    )


def page(everything: Iterable[Measured]) -> tuple[str, dict[str, str]]:
    """Return the text of the page, and its pictures by file name."""
    text = [HEAD]
    pictures: dict[str, str] = {}
    for measured in everything:
        rows = rows_of(measured)
        if measured.benchmark == "anatomy":
            section, drawn = anatomy_section.section(measured, IMAGES, _machine(measured))
        elif rows:
            section, drawn = _section(measured, rows)
        else:
            continue
        text.append(section)
        pictures |= drawn
    return "\n".join(text), pictures


def _section(measured: Measured, rows: Sequence[Row]) -> tuple[str, dict[str, str]]:
    name = measured.benchmark
    title = TITLES.get(name, name)
    goals = [row for row in rows if row.target is not None]
    met = sum(row.ratio >= (row.target or 0) for row in goals)
    pictures: dict[str, str] = {}
    images = []
    for metric in dict.fromkeys(row.metric for row in rows):
        drawn = [(row.label, row.ratio, row.lowest, row.highest) for row in rows if row.metric == metric]
        file = f"{name}-{metric.replace(',', '').replace(' ', '-').lower()}.svg"
        caption = f"{title}: {metric}"
        pictures[file] = bars(caption, "Ratio; right of the dashed line statebed is better", drawn, even=1.0)
        images.append(f'<img src="{IMAGES}/{file}" alt="{caption}, as ratios; the table has the numbers" width="960">')
    lines = [
        f"## {title}: `{name}`",
        "",
        f"Command: `{measured.command}`. Rounds: {len(measured.rounds)}. {_machine(measured)}",
        *([measured.remark] if measured.remark else []),
        "",
        *([f"Goals met: {met} of {len(goals)}.", ""] if goals else []),
        *images,
        "",
        "| case | compared with | what | ours | theirs | ratio | spread | goal |",
        "|---|---|---|---|---|---|---|---|",
        *(
            f"| {row.case} | {row.baseline} | {row.metric} | {number(row.ours)} | {number(row.theirs)} {row.unit} | "
            f"{number(row.ratio)} | {row.spread} | {row.verdict} |"
            for row in rows
        ),
        "",
    ]
    return "\n".join(lines), pictures


def _machine(measured: Measured) -> str:
    machine, versions = measured.machine, measured.versions
    described = ", ".join(f"{name} {value}" for name, value in machine.items())
    packages = ", ".join(f"{name} {value}" for name, value in versions.items())
    return f"Machine: {described or 'not recorded'}. Versions: {packages or 'not recorded'}."


def headline(everything: Iterable[Measured]) -> list[str]:
    """Return the lines of the README's table: the least and the greatest ratio of each comparison that has goals."""
    by_name = {measured.benchmark: rows_of(measured) for measured in everything}
    chosen = (
        ("spark", "throughput", "Spark ", "rows per second on Spark, against its RocksDB and HDFS-backed state stores"),
        ("spark", "processor time", "Spark ", "processor time per row, against the same"),
        ("spark", "peak memory", "Spark ", "peak memory of the process tree, against the same"),
        ("spark", "throughput", "transformWithState", "rows per second of a user function, against transformWithState"),
        ("kafka", "throughput", "Spark ", "messages per second from topic to topic, against Spark's own query"),
        (
            "engine",
            "throughput",
            "rocksdict",
            "read-modify-write of keyed state in Python, against RocksDB (rocksdict)",
        ),
    )
    lines = ["| what | cases | median ratio | least | greatest |", "|---|---|---|---|---|"]
    for name, metric, baseline, what in chosen:
        rows = [row for row in by_name.get(name, []) if row.metric == metric and row.baseline.startswith(baseline)]
        if rows:
            ratios = [row.ratio for row in rows]
            middle, lowest, highest = (number(value) for value in (statistics.median(ratios), min(ratios), max(ratios)))
            lines.append(f"| {what} | {len(rows)} | {middle} | {lowest} | {highest} |")
    return lines
