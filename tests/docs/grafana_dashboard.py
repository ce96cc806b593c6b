"""Writes docs/grafana/statebed.json: `python tests/docs/grafana_dashboard.py` replaces the file."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parents[2] / "docs" / "grafana" / "statebed.json"
_COLUMNS, _HEIGHT = 24, 8
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_JOB = 'job_name=~"$job"'
_RATE = "[$__rate_interval]"


@dataclass(frozen=True)
class Panel:
    """One plot: titles, what it shows, and series as (expression, legend)."""

    title: str
    about: str
    series: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    stacked: bool = False


def _rate(metric: str) -> str:
    return f"rate({metric}{{{_JOB}}}{_RATE})"


_PER_EPOCH = (
    f"sum by (job_name, phase) ({_rate('statebed_phase_seconds_total')}) "
    f"/ on (job_name) group_left sum by (job_name) ({_rate('statebed_epochs_total')})"
)
_DURATIONS = f"sum by (job_name, le) ({_rate('statebed_epoch_duration_seconds_bucket')})"
_HITS, _LOADS = _rate("statebed_hits_total"), _rate("statebed_loads_total")
_HIT_SHARE = f"{_HITS} / ({_HITS} + {_LOADS})"

ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Runs",
        (
            Panel(
                "Newest run",
                "1 for the state of the newest run; scrape `statebed ui`, because a dead driver serves nothing",
                ((f"statebed_run_state{{{_JOB}}}", "{{job_name}} {{state}}"),),
                "none",
                "stat",
                8,
            ),
            Panel(
                "Failed",
                "1 if the newest run failed, was fenced, vanished or exited, and the time",
                (
                    (f"statebed_run_failed{{{_JOB}}}", "{{job_name}}"),
                    (f"time() - statebed_last_failure_timestamp_seconds{{{_JOB}}}", "{{job_name}}, seconds ago"),
                ),
                "none",
                "stat",
                8,
            ),
            Panel(
                "Undelivered epochs",
                "epochs that sinks lacked when the newest run failed",
                ((f"statebed_undelivered_epochs{{{_JOB}}}", "{{job_name}} {{sink}}"),),
                "none",
                "stat",
                4,
            ),
            Panel(
                "Source lag",
                "offsets not yet read after the newest batch, if the source reports them",
                (
                    (f"statebed_source_offsets_behind{{{_JOB}}}", "{{job_name}} {{source}}"),
                    (
                        f"max by (job_name, source, topic) (statebed_source_partition_offsets_behind{{{_JOB}}})",
                        "{{job_name}} {{source}} slowest partition of {{topic}}",
                    ),
                ),
                "none",
                "stat",
                4,
            ),
        ),
    ),
    (
        "At a glance",
        (
            Panel(
                "Running", "1 while a query runs", ((f"statebed_up{{{_JOB}}}", "{{job_name}}"),), kind="stat", width=4
            ),
            Panel(
                "Epoch",
                "number of the newest epoch",
                ((f"statebed_epoch{{{_JOB}}}", "{{job_name}}"),),
                "none",
                "stat",
                4,
            ),
            Panel(
                "Time since last commit",
                "grows while a job is stuck",
                ((f"time() - statebed_last_commit_timestamp_seconds{{{_JOB}}}", "{{job_name}}"),),
                "s",
                "stat",
                4,
            ),
            Panel(
                "Rows per second",
                "input of the operators",
                ((f"sum by (job_name) ({_rate('statebed_rows_in_total')})", "{{job_name}}"),),
                "rowsps",
                "stat",
                4,
            ),
            Panel(
                "State in the store",
                "size of live data files",
                ((f'sum by (job_name) (statebed_state_bytes{{{_JOB}, tier="store"}})', "{{job_name}}"),),
                "bytes",
                "stat",
                4,
            ),
            Panel(
                "Retries and failures",
                "in the last hour",
                (
                    (
                        f"sum by (job_name, event) (increase(statebed_events_total{{{_JOB}}}[1h]))",
                        "{{job_name}} {{event}}",
                    ),
                ),
                "none",
                "stat",
                4,
            ),
        ),
    ),
    (
        "Epochs",
        (
            Panel(
                "Time by phase",
                "seconds per epoch",
                ((_PER_EPOCH, "{{job_name}} {{phase}}"),),
                "s",
                width=12,
                stacked=True,
            ),
            Panel(
                "Duration",
                "median and 99th percentile, until the record is committed",
                tuple(
                    (f"histogram_quantile({share}, {_DURATIONS})", f"{{{{job_name}}}} p{share * 100:g}")
                    for share in (0.5, 0.99)
                ),
                "s",
            ),
            Panel(
                "Pre-aggregated",
                "share of epochs whose rows were pre-aggregated in the JVM",
                (
                    (
                        f"{_rate('statebed_preaggregated_epochs_total')} / {_rate('statebed_epochs_total')}",
                        "{{job_name}}",
                    ),
                ),
                "percentunit",
                width=4,
            ),
        ),
    ),
    (
        "Rows and time",
        (
            Panel(
                "Rows",
                "input and output of operators",
                (
                    (_rate("statebed_rows_in_total"), "{{operator}} in"),
                    (_rate("statebed_rows_out_total"), "{{operator}} out"),
                ),
                "rowsps",
            ),
            Panel(
                "Late, expired, dropped",
                "late rows, expired state, retractions of unknown rows",
                (
                    (_rate("statebed_rows_late_total"), "{{operator}} late"),
                    (_rate("statebed_rows_expired_total"), "{{operator}} expired"),
                    (_rate("statebed_retractions_dropped_total"), "{{operator}} dropped"),
                ),
                "rowsps",
            ),
            Panel(
                "Watermark lag",
                "lag of the watermark behind the clock, and behind the newest event time of the sources",
                (
                    (f"time() - statebed_watermark_timestamp_seconds{{{_JOB}}}", "{{operator}}"),
                    (f"time() - statebed_source_event_timestamp_seconds{{{_JOB}}}", "source {{source}}"),
                ),
                "s",
            ),
            Panel("Sinks", "rows committed", ((_rate("statebed_sink_rows_total"), "{{sink}}"),), "rowsps"),
            Panel(
                "Load of the slowest subtask",
                "busy share of each second",
                ((_rate("statebed_busy_seconds_total"), "{{operator}}"),),
                "percentunit",
            ),
            Panel(
                "Written", "bytes written by epochs", ((_rate("statebed_written_bytes_total"), "{{operator}}"),), "Bps"
            ),
        ),
    ),
    (
        "State",
        (
            Panel(
                "Size by tier",
                "memory and disk of workers, files in the store",
                ((f"sum by (job_name, operator, tier) (statebed_state_bytes{{{_JOB}}})", "{{operator}} {{tier}}"),),
                "bytes",
                width=12,
            ),
            Panel("Rows", "rows of tables", ((f"statebed_state_rows{{{_JOB}}}", "{{operator}}.{{table}}"),), width=12),
            Panel(
                "Files", "live data files", ((f"statebed_state_files{{{_JOB}}}", "{{operator}}.{{table}}"),), width=6
            ),
            Panel(
                "Tombstones",
                "live tombstones of tables",
                ((f"statebed_tombstones{{{_JOB}}}", "{{operator}}.{{table}}"),),
                width=6,
            ),
            Panel(
                "Retained",
                "epochs and savepoints",
                (
                    (f"statebed_retained_epochs{{{_JOB}}}", "{{job_name}} epochs"),
                    (f"statebed_savepoints{{{_JOB}}}", "{{job_name}} savepoints"),
                ),
                width=6,
            ),
            Panel(
                "Subtasks and runs",
                "subtasks of each operator, and the number of the run",
                (
                    (f"statebed_parallelism{{{_JOB}}}", "{{job_name}} subtasks"),
                    (f"statebed_run{{{_JOB}}}", "{{job_name}} run"),
                ),
                width=6,
            ),
        ),
    ),
    (
        "Memory",
        (
            Panel(
                "Budget and peak",
                "fullest worker process of each host",
                (
                    (f"statebed_memory_budget_bytes{{{_JOB}}}", "{{host}} budget"),
                    (f"statebed_memory_peak_bytes{{{_JOB}}}", "{{host}} peak"),
                ),
                "bytes",
            ),
            Panel(
                "Memory by holder",
                "by table and purpose",
                ((f"statebed_memory_held_bytes{{{_JOB}}}", "{{host}} {{holder}}"),),
                "bytes",
                stacked=True,
            ),
            Panel(
                "Shares",
                "memory reserved for operators and tables, and used by them",
                (
                    (f"statebed_memory_share_bytes{{{_JOB}}}", "{{host}} {{holder}} keeps"),
                    (f"statebed_memory_share_held_bytes{{{_JOB}}}", "{{host}} {{holder}} holds"),
                ),
                "bytes",
            ),
            Panel(
                "Host cache",
                "size on local disk, and its limit",
                (
                    (f"statebed_cache_bytes{{{_JOB}}}", "{{host}}"),
                    (f"statebed_cache_limit_bytes{{{_JOB}}}", "{{host}} limit"),
                ),
                "bytes",
            ),
            Panel(
                "Spills and loads",
                "spills to local disk, and reads of state that was not in memory",
                (
                    (_rate("statebed_spills_total"), "{{operator}}.{{table}} spills"),
                    (_rate("statebed_loads_total"), "{{operator}}.{{table}} loads"),
                ),
                "ops",
            ),
            Panel(
                "Memory hit rate",
                "share of reads of state",
                ((_HIT_SHARE, "{{operator}}.{{table}}"),),
                "percentunit",
            ),
            Panel("Spilled", "bytes per second", ((_rate("statebed_spilled_bytes_total"), "{{host}}"),), "Bps"),
        ),
    ),
    (
        "Compaction",
        (
            Panel(
                "Debt",
                "bytes that a full compaction would read",
                ((f"statebed_compaction_debt_bytes{{{_JOB}}}", "{{operator}}.{{table}}"),),
                "bytes",
            ),
            Panel(
                "Read and written",
                "bytes per second",
                (
                    (_rate("statebed_compaction_read_bytes_total"), "{{job_name}} read"),
                    (_rate("statebed_compaction_written_bytes_total"), "{{job_name}} written"),
                ),
                "Bps",
            ),
            Panel(
                "Rounds, merges, failures",
                "in the last hour",
                (
                    (f"increase(statebed_compaction_rounds_total{{{_JOB}}}[1h])", "{{job_name}} rounds"),
                    (f"increase(statebed_compaction_merges_total{{{_JOB}}}[1h])", "{{job_name}} merges"),
                    (f"increase(statebed_compaction_failures_total{{{_JOB}}}[1h])", "{{job_name}} failures"),
                ),
            ),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """The whole dashboard, as Grafana imports it."""
    return {
        "uid": "statebed",
        "title": "statebed",
        "description": "statebed jobs: epochs, rows, watermarks, state by tier, memory, compaction.",
        "tags": ["statebed", "streaming"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "timezone": "browser",
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
                {
                    "name": "job",
                    "type": "query",
                    "label": "Job",
                    "datasource": _SOURCE,
                    "query": "label_values(statebed_epoch, job_name)",
                    "refresh": 2,
                    "multi": True,
                    "includeAll": True,
                },
            ]
        },
        "panels": list(_panels()),
    }


def _panels() -> Iterator[dict[str, Any]]:
    number, y = 1, 0
    for title, panels in ROWS:
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"x": 0, "y": y, "w": _COLUMNS, "h": 1},
        }
        number, y, x = number + 1, y + 1, 0
        height = _HEIGHT // 2 if all(panel.kind == "stat" for panel in panels) else _HEIGHT
        for panel in panels:
            if x + panel.width > _COLUMNS:
                x, y = 0, y + height
            yield _panel(panel, number) | {"gridPos": {"x": x, "y": y, "w": panel.width, "h": height}}
            number, x = number + 1, x + panel.width
        y += height


def _panel(panel: Panel, number: int) -> dict[str, Any]:
    custom = {"fillOpacity": 25, "stacking": {"mode": "normal"}} if panel.stacked else {}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": custom}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": _SOURCE, "expr": expression, "legendFormat": legend}
            for place, (expression, legend) in enumerate(panel.series)
        ],
    }


def text() -> str:
    """The file."""
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
