"""Every metric, declared once: its name, kind, labels and what it means.

Names end in their unit, counters in `_total`, as Prometheus wants it. Labels have few values: names of jobs, operators,
tables, sources, sinks and hosts, never keys, epochs or subtasks. A job's is `job_name`: Prometheus has a `job` of its
own. The reference page is written from here, and the Grafana dashboard names nothing else.
"""

import enum
from dataclasses import dataclass


class MetricKind(enum.Enum):
    """How values of a metric behave."""

    COUNTER = "counter"
    """Grows; begins at 0 with the process."""
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Metric:
    """One metric."""

    name: str
    kind: MetricKind
    labels: tuple[str, ...]
    text: str


JOB = ("job_name",)
OPERATOR = ("job_name", "operator")
TABLE = ("job_name", "operator", "table")
HOST = ("job_name", "host")
TIERS = ("memory", "disk", "store")
DURATION_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)

_COUNTER, _GAUGE, _HISTOGRAM = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM
_DECLARED = (
    Metric("statebed_up", _GAUGE, JOB, "1 while a query of the job runs in this process, else 0"),
    Metric("statebed_run", _GAUGE, JOB, "number of the job's present run"),
    Metric(
        "statebed_run_state",
        _GAUGE,
        (*JOB, "state"),
        "1 for the state of the newest run: running, finished, stopped, drained, failed, fenced, exited, vanished, "
        "superseded or unknown",
    ),
    Metric(
        "statebed_run_failed",
        _GAUGE,
        JOB,
        "1 if the newest run failed, was fenced, vanished or exited before it ended, else 0",
    ),
    Metric(
        "statebed_last_failure_timestamp_seconds",
        _GAUGE,
        JOB,
        "when the newest run failed, or gave its last sign of life before it vanished, since 1970",
    ),
    Metric(
        "statebed_undelivered_epochs",
        _GAUGE,
        (*JOB, "sink"),
        "committed epochs that a sink lacked when the newest run failed",
    ),
    Metric(
        "statebed_source_offsets_behind",
        _GAUGE,
        (*JOB, "source"),
        "offsets of a source that were not read after the newest batch, where the source tells",
    ),
    Metric("statebed_epoch", _GAUGE, JOB, "number of the newest committed epoch"),
    Metric("statebed_retained_epochs", _GAUGE, JOB, "epochs from the oldest that is retained to the newest"),
    Metric("statebed_savepoints", _GAUGE, JOB, "savepoints that the newest record keeps alive"),
    Metric("statebed_parallelism", _GAUGE, JOB, "subtasks of each operator"),
    Metric("statebed_last_commit_timestamp_seconds", _GAUGE, JOB, "when the newest epoch was committed, since 1970"),
    Metric("statebed_epochs_total", _COUNTER, JOB, "epochs committed"),
    Metric(
        "statebed_preaggregated_epochs_total", _COUNTER, JOB, "epochs whose rows the JVM added up before the shuffle"
    ),
    Metric("statebed_epoch_duration_seconds", _HISTOGRAM, JOB, "from the begin of an epoch until its record was put"),
    Metric(
        "statebed_phase_seconds_total",
        _COUNTER,
        (*JOB, "phase"),
        "wall time by phase: planning, read, shuffle, merge, write, commit, publish",
    ),
    Metric(
        "statebed_events_total",
        _COUNTER,
        (*JOB, "event"),
        "what should be rare: retry (an epoch's action was repeated), failure (a query failed), fenced (it was "
        "superseded), collection_failure (garbage stays for now)",
    ),
    Metric("statebed_rows_in_total", _COUNTER, OPERATOR, "rows that operators got, late ones too"),
    Metric("statebed_rows_late_total", _COUNTER, OPERATOR, "rows that came too late"),
    Metric("statebed_rows_out_total", _COUNTER, OPERATOR, "rows that operators gave"),
    Metric("statebed_rows_expired_total", _COUNTER, OPERATOR, "rows of state that left by their time to live"),
    Metric("statebed_retractions_dropped_total", _COUNTER, OPERATOR, "retractions that found nothing to take back"),
    Metric("statebed_written_bytes_total", _COUNTER, OPERATOR, "bytes that epochs wrote: state, output, metadata"),
    Metric("statebed_busy_seconds_total", _COUNTER, OPERATOR, "work of the slowest subtask of each epoch"),
    Metric("statebed_watermark_timestamp_seconds", _GAUGE, OPERATOR, "event time up to which results are final"),
    Metric(
        "statebed_source_event_timestamp_seconds",
        _GAUGE,
        (*JOB, "source"),
        "the greatest event time that a source has given",
    ),
    Metric("statebed_sink_rows_total", _COUNTER, (*JOB, "sink"), "rows that were committed for a sink"),
    Metric("statebed_state_rows", _GAUGE, TABLE, "rows of a table, each as often as files hold it"),
    Metric(
        "statebed_state_bytes",
        _GAUGE,
        (*TABLE, "tier"),
        "bytes of a table by tier: memory and disk of workers at the end of an epoch, live files in the store",
    ),
    Metric("statebed_state_files", _GAUGE, TABLE, "live data files of a table"),
    Metric("statebed_tombstones", _GAUGE, TABLE, "deletions that files still need"),
    Metric("statebed_compaction_debt_bytes", _GAUGE, TABLE, "bytes that a compaction of everything would read"),
    Metric("statebed_spills_total", _COUNTER, TABLE, "moves of state from memory to local disk"),
    Metric("statebed_loads_total", _COUNTER, TABLE, "reads of state that was not in memory"),
    Metric("statebed_hits_total", _COUNTER, TABLE, "reads of state that memory could answer"),
    Metric("statebed_memory_budget_bytes", _GAUGE, HOST, "budget of state of one worker process"),
    Metric("statebed_memory_peak_bytes", _GAUGE, HOST, "the fullest worker process of the newest epoch"),
    Metric("statebed_memory_held_bytes", _GAUGE, (*HOST, "holder"), "who holds the memory of that process"),
    Metric("statebed_memory_share_bytes", _GAUGE, (*HOST, "holder"), "memory that an operator or table keeps"),
    Metric("statebed_memory_share_held_bytes", _GAUGE, (*HOST, "holder"), "memory that it holds of that, or beyond"),
    Metric("statebed_cache_bytes", _GAUGE, HOST, "disk that the host's cache takes"),
    Metric("statebed_cache_limit_bytes", _GAUGE, HOST, "most that the host's cache may take"),
    Metric("statebed_spilled_bytes_total", _COUNTER, HOST, "bytes of state that were moved to local disk"),
    Metric("statebed_compaction_rounds_total", _COUNTER, JOB, "rounds of compaction that were begun"),
    Metric("statebed_compaction_merges_total", _COUNTER, JOB, "merges that a committed epoch took"),
    Metric("statebed_compaction_read_bytes_total", _COUNTER, JOB, "bytes that compaction read"),
    Metric("statebed_compaction_written_bytes_total", _COUNTER, JOB, "bytes that compaction wrote"),
    Metric("statebed_compaction_failures_total", _COUNTER, JOB, "rounds, or parts of them, that came to nothing"),
)
CATALOGUE = {metric.name: metric for metric in _DECLARED}
"""By name, in the order of the reference."""
