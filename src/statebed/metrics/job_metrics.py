"""Metrics of one job, updated from its records.

Counters sum the work of all epochs, gauges show the newest record. Counters start at 0 with the process and continue
when a job is restarted in it. Gauges of an operator, table or host that is gone are removed; counters stay, as
Prometheus expects.
"""

import enum
import hashlib
import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping

from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.run_states import RunReport
from statebed.inspect.sources import partition_lags
from statebed.metrics.catalogue import DURATION_BUCKETS, TIERS
from statebed.metrics.samples import Distribution, Labels, Sample

_MICROS = 1e6
_DURATION = "statebed_epoch_duration_seconds"
Key = tuple[str, Labels]


class Event(enum.Enum):
    """Rare events that are counted."""

    RETRY = "retry"
    FAILURE = "failure"
    FENCED = "fenced"
    CLEANUP_FAILURE = "collection_failure"


class JobMetrics:
    """Metrics of one job. Thread-safe: a controller writes while scrapers read."""

    def __init__(self, job: str) -> None:
        self.job = job
        self._lock = threading.Lock()
        self._counters: dict[Key, float] = {}
        self._gauges: dict[Key, float] = {}
        self._of_run: dict[Key, float] = {}
        """Gauges of the newest run that are not part of records."""
        self._buckets = [0] * len(DURATION_BUCKETS)
        self._durations = (0, 0.0)
        self._compacted: tuple[int, pb.CompactionFigures] = (0, pb.CompactionFigures())
        self._queries: int | None = None
        for event in Event:
            self._count("statebed_events_total", event.value, by=0)

    def begin(self) -> None:
        """Count a query of the job that starts in this process."""
        with self._lock:
            self._queries = (self._queries or 0) + 1

    def end(self) -> None:
        """Count a query of the job that has ended; another one may be running."""
        with self._lock:
            self._queries = max(0, (self._queries or 0) - 1)

    @property
    def active(self) -> bool:
        """Whether a query of the job is running."""
        return bool(self._queries)

    def show(self, record: pb.CheckpointMetadata) -> None:
        """Set the gauges from a record without counting the work of its epoch."""
        with self._lock:
            self._show(record)

    def show_run(self, report: RunReport, sources: Iterable[pb.SourceProgress] = ()) -> None:
        """Set the gauges of the newest run: its state, or how it ended."""
        gauges: dict[Key, float] = {
            ("statebed_run_state", (self.job, report.state.value)): 1,
            ("statebed_run_failed", (self.job,)): int(report.is_problem),
        }
        if report.is_problem and report.end_time_us is not None:
            gauges["statebed_last_failure_timestamp_seconds", (self.job,)] = report.end_time_us / _MICROS
        for sink in report.undelivered:
            gauges["statebed_undelivered_epochs", (self.job, sink.sink)] = sink.epochs
        for source in sources:
            if source.HasField("offsets_behind"):
                gauges["statebed_source_offsets_behind", (self.job, source.source)] = source.offsets_behind
            for lag in partition_lags(source.end_offset, source.latest_offset):
                labels = (self.job, source.source, lag.topic, str(lag.partition))
                gauges["statebed_source_partition_offsets_behind", labels] = lag.behind
        with self._lock:
            self._of_run = gauges

    def event(self, event: Event) -> None:
        """Count a rare event."""
        with self._lock:
            self._count("statebed_events_total", event.value)

    def observe(self, record: pb.CheckpointMetadata, after_us: Mapping[str, int] | None = None) -> None:
        """Add a committed record. `after_us` are the phases after its commit if they are known; otherwise they are
        counted with the next record.
        """
        with self._lock:
            self._show(record)
            if record.kind != pb.EPOCH:
                return
            self._count("statebed_epochs_total")
            self._count("statebed_preaggregated_epochs_total", by=int(record.figures.preaggregated))
            self._last((record.finish_time_us - record.start_time_us) / _MICROS)
            after = record.figures.previous_phases_us if after_us is None else after_us
            for phase, us in sorted([*record.figures.phases_us.items(), *after.items()]):
                self._count("statebed_phase_seconds_total", phase, by=us / _MICROS)
            self._count_rows(record)
            self._count_figures(record.figures)
            self._count_compaction(record)

    def samples(self) -> Iterator[Sample | Distribution]:
        """Yield a consistent snapshot of all values."""
        with self._lock:
            values = [*self._gauges.items(), *self._of_run.items(), *self._counters.items()]
            if self._queries is not None:
                values.append((("statebed_up", (self.job,)), min(self._queries, 1)))
            count, total = self._durations
            held = Distribution(_DURATION, (self.job,), DURATION_BUCKETS, tuple(self._buckets), count, total)
        yield held
        yield from (Sample(metric, labels, value) for (metric, labels), value in values)

    # ---- with the lock held ----------------------------------------------------------------------------------

    def _count(self, metric: str, *labels: str, by: float = 1) -> None:
        key = (metric, (self.job, *labels))
        self._counters[key] = self._counters.get(key, 0) + by

    def _set(self, metric: str, *labels: str, to: float) -> None:
        self._gauges[metric, (self.job, *labels)] = to

    def _last(self, seconds: float) -> None:
        for number in range(bisect_left(DURATION_BUCKETS, seconds), len(DURATION_BUCKETS)):
            self._buckets[number] += 1
        count, total = self._durations
        self._durations = (count + 1, total + seconds)

    def _show(self, record: pb.CheckpointMetadata) -> None:
        """Replace the gauges by those of this record; sizes that it does not report are kept."""
        kept = {} if record.HasField("figures") else {key: self._gauges[key] for key in self._gauges if _is_size(key)}
        self._gauges = kept
        self._set("statebed_run", to=record.run)
        self._set("statebed_epoch", to=record.epoch)
        self._set("statebed_retained_epochs", to=record.epoch - record.min_epoch + 1)
        self._set("statebed_savepoints", to=len(record.pins))
        self._set("statebed_parallelism", to=record.parallelism)
        self._set("statebed_last_commit_timestamp_seconds", to=record.finish_time_us / _MICROS)
        for entry in record.operators:
            marks = [input_.watermark_us for input_ in entry.inputs if input_.HasField("watermark_us")]
            if marks and not entry.retired:
                self._set("statebed_watermark_timestamp_seconds", entry.operator_id, to=min(marks) / _MICROS)
        for source in record.sources:
            if source.HasField("max_event_time_us"):
                seconds = source.max_event_time_us / _MICROS
                self._set("statebed_source_event_timestamp_seconds", source.source, to=seconds)
        self._show_figures(record.figures)

    def _show_figures(self, figures: pb.EpochFigures) -> None:
        for operator in figures.operators:
            for table in operator.tables:
                place = (operator.operator_id, table.table)
                self._set("statebed_state_rows", *place, to=table.rows)
                sizes = (table.memory_bytes, table.disk_bytes, table.store_bytes)
                for tier, nbytes in zip(TIERS, sizes, strict=True):
                    self._set("statebed_state_bytes", *place, tier, to=nbytes)
                self._set("statebed_state_files", *place, to=table.files)
                self._set("statebed_tombstones", *place, to=table.tombstones)
                self._set("statebed_compaction_debt_bytes", *place, to=table.compaction_debt_bytes)
        for host in figures.hosts:
            self._set("statebed_memory_budget_bytes", host.host, to=host.budget_bytes)
            self._set("statebed_memory_peak_bytes", host.host, to=host.peak_bytes)
            self._set("statebed_cache_bytes", host.host, to=host.cache_bytes)
            self._set("statebed_cache_limit_bytes", host.host, to=host.cache_limit_bytes)
            for holder, nbytes in sorted(host.holders.items()):
                self._set("statebed_memory_held_bytes", host.host, holder, to=nbytes)
            for name, nbytes in sorted(host.shares.items()):
                self._set("statebed_memory_share_bytes", host.host, name, to=nbytes)
                self._set("statebed_memory_share_held_bytes", host.host, name, to=host.held[name])

    def _count_rows(self, record: pb.CheckpointMetadata) -> None:
        for entry in record.operators:
            if entry.retired:
                continue
            self._count("statebed_rows_in_total", entry.operator_id, by=entry.rows_in)
            self._count("statebed_rows_late_total", entry.operator_id, by=entry.rows_late)
            self._count("statebed_rows_out_total", entry.operator_id, by=entry.rows_out)
        for sink in record.sinks:
            files = (f for f in record.outbox if f.stream == sink.stream and sink.operator_id in {"", f.operator_id})
            self._count("statebed_sink_rows_total", sink.sink_id, by=sum(file.rows for file in files))

    def _count_figures(self, figures: pb.EpochFigures) -> None:
        for operator in figures.operators:
            name = operator.operator_id
            self._count("statebed_rows_expired_total", name, by=operator.rows_expired)
            self._count("statebed_retractions_dropped_total", name, by=operator.retractions_dropped)
            self._count("statebed_written_bytes_total", name, by=operator.bytes_written)
            self._count("statebed_busy_seconds_total", name, by=operator.busy_us / _MICROS)
            for table in operator.tables:
                self._count("statebed_spills_total", name, table.table, by=table.spills)
                self._count("statebed_loads_total", name, table.table, by=table.loads)
                self._count("statebed_hits_total", name, table.table, by=table.hits)
        for host in figures.hosts:
            self._count("statebed_spilled_bytes_total", host.host, by=host.spilled_bytes)

    def _count_compaction(self, record: pb.CheckpointMetadata) -> None:
        """Count the compaction work since the previous record; figures in records are totals since the start of the
        run.
        """
        if not record.figures.HasField("compaction"):
            return
        run, before = self._compacted
        if run != record.run:
            before = pb.CompactionFigures()
        now = record.figures.compaction
        for name in ("rounds", "merges", "read_bytes", "written_bytes", "failures"):
            by = max(0, getattr(now, name) - getattr(before, name))
            self._count(f"statebed_compaction_{name}_total", by=by)
        self._compacted = (record.run, now)


def _is_size(key: Key) -> bool:
    return key[0].startswith(("statebed_state_", "statebed_tombstones", "statebed_compaction_debt"))


_process_lock = threading.Lock()
_jobs_of_process: dict[tuple[str, str], JobMetrics] = {}
"""Metrics of all jobs that have run in this process, by job and state."""


def job_metrics(job: str, state: str) -> JobMetrics:
    """Return the metrics of a job. If two jobs of the same name have different states, the later one gets a distinct
    label while the earlier one runs, and replaces it afterwards.
    """
    with _process_lock:
        metrics = _jobs_of_process.get((job, state))
        if metrics is None:
            others = [place for place in _jobs_of_process if place[0] == job]
            for place in others:
                if not _jobs_of_process[place].active:
                    del _jobs_of_process[place]
            taken = any(place in _jobs_of_process for place in others)
            label = f"{job} at {hashlib.sha256(state.encode()).hexdigest()[:6]}" if taken else job
            metrics = _jobs_of_process[job, state] = JobMetrics(label)
        return metrics
