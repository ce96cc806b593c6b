"""Every metric, declared once: its name, kind, labels and meaning.

Names end in their unit, and counters in `_total`, following Prometheus conventions. Labels have low cardinality: names
of jobs, operators, tables, sources, sinks and hosts, never keys, epochs or subtasks. The label of a job is `job_name`,
because Prometheus reserves `job`. The reference page is generated from this module, and the Grafana dashboard uses no
other metrics.
"""

import enum
from dataclasses import dataclass


class MetricKind(enum.Enum):
    """Kind of a metric."""

    COUNTER = "counter"
    """Monotonic counter that starts at 0 with the process."""
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
    Metric("statebed_run", _GAUGE, JOB, "number of the job's current run"),
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
        "Unix time at which the newest run failed, or of its last heartbeat before it vanished",
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
        "offsets of a source not yet read after the newest batch, if the source reports them",
    ),
    Metric(
        "statebed_source_partition_offsets_behind",
        _GAUGE,
        (*JOB, "source", "topic", "partition"),
        "offsets of a partition of a Kafka topic not yet read after the newest batch",
    ),
    Metric("statebed_epoch", _GAUGE, JOB, "number of the newest committed epoch"),
    Metric("statebed_retained_epochs", _GAUGE, JOB, "number of epochs from the oldest retained one to the newest"),
    Metric("statebed_savepoints", _GAUGE, JOB, "number of savepoints"),
    Metric("statebed_parallelism", _GAUGE, JOB, "number of subtasks of each operator"),
    Metric("statebed_last_commit_timestamp_seconds", _GAUGE, JOB, "Unix time at which the newest epoch was committed"),
    Metric("statebed_epochs_total", _COUNTER, JOB, "committed epochs"),
    Metric("statebed_preaggregated_epochs_total", _COUNTER, JOB, "epochs whose rows were pre-aggregated in the JVM"),
    Metric(
        "statebed_epoch_duration_seconds",
        _HISTOGRAM,
        JOB,
        "time from the start of an epoch to the commit of its record",
    ),
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
        "rare events: retry (the Spark job of an epoch was repeated), failure (a query failed), fenced (a newer run "
        "started), collection_failure (a clean-up failed)",
    ),
    Metric("statebed_rows_in_total", _COUNTER, OPERATOR, "rows received by operators, including late ones"),
    Metric("statebed_rows_late_total", _COUNTER, OPERATOR, "late rows"),
    Metric("statebed_rows_out_total", _COUNTER, OPERATOR, "rows output by operators"),
    Metric("statebed_rows_expired_total", _COUNTER, OPERATOR, "rows of state that expired"),
    Metric("statebed_retractions_dropped_total", _COUNTER, OPERATOR, "retractions of unknown rows, which were dropped"),
    Metric("statebed_written_bytes_total", _COUNTER, OPERATOR, "bytes written by epochs: state, output, metadata"),
    Metric("statebed_busy_seconds_total", _COUNTER, OPERATOR, "time that the slowest subtask of each epoch worked"),
    Metric(
        "statebed_watermark_timestamp_seconds", _GAUGE, OPERATOR, "watermark: event time up to which results are final"
    ),
    Metric(
        "statebed_source_event_timestamp_seconds",
        _GAUGE,
        (*JOB, "source"),
        "greatest event time of a source",
    ),
    Metric("statebed_sink_rows_total", _COUNTER, (*JOB, "sink"), "rows committed for a sink"),
    Metric("statebed_state_rows", _GAUGE, TABLE, "rows of a table in all its files, including outdated versions"),
    Metric(
        "statebed_state_bytes",
        _GAUGE,
        (*TABLE, "tier"),
        "bytes of a table by tier: memory and disk of workers at the end of an epoch, live files in the store",
    ),
    Metric("statebed_state_files", _GAUGE, TABLE, "live data files of a table"),
    Metric("statebed_tombstones", _GAUGE, TABLE, "live tombstones of a table"),
    Metric("statebed_compaction_debt_bytes", _GAUGE, TABLE, "bytes that a full compaction would read"),
    Metric("statebed_spills_total", _COUNTER, TABLE, "number of spills from memory to local disk"),
    Metric("statebed_loads_total", _COUNTER, TABLE, "reads of state that was not in memory"),
    Metric("statebed_hits_total", _COUNTER, TABLE, "reads of state that was in memory"),
    Metric("statebed_memory_budget_bytes", _GAUGE, HOST, "memory budget of one worker process"),
    Metric(
        "statebed_memory_peak_bytes",
        _GAUGE,
        HOST,
        "peak memory of state in the fullest worker process of the newest epoch",
    ),
    Metric("statebed_memory_held_bytes", _GAUGE, (*HOST, "holder"), "memory of that process by holder"),
    Metric("statebed_memory_share_bytes", _GAUGE, (*HOST, "holder"), "memory reserved for an operator or table"),
    Metric(
        "statebed_memory_share_held_bytes",
        _GAUGE,
        (*HOST, "holder"),
        "memory that an operator or table with a share uses",
    ),
    Metric("statebed_cache_bytes", _GAUGE, HOST, "disk space used by the host cache"),
    Metric("statebed_cache_limit_bytes", _GAUGE, HOST, "disk space limit of the host cache"),
    Metric("statebed_spilled_bytes_total", _COUNTER, HOST, "bytes of state spilled to local disk"),
    Metric("statebed_compaction_rounds_total", _COUNTER, JOB, "compaction rounds started"),
    Metric("statebed_compaction_merges_total", _COUNTER, JOB, "edits of compactions applied by committed epochs"),
    Metric("statebed_compaction_read_bytes_total", _COUNTER, JOB, "bytes read by compaction"),
    Metric("statebed_compaction_written_bytes_total", _COUNTER, JOB, "bytes written by compaction"),
    Metric("statebed_compaction_failures_total", _COUNTER, JOB, "compaction rounds, or parts of them, that failed"),
)
CATALOGUE = {metric.name: metric for metric in _DECLARED}
"""Metrics by name, in the order of the reference."""
