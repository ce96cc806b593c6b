"""Metrics of jobs from their records alone, for a process other than the job's, such as the dashboard.

The first refresh shows the newest record; later ones add the records committed since. Counters therefore start at 0
with the watching process and never decrease.
"""

import threading

from statebed.checkpoint import CheckpointLog
from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.jobs import job_names
from statebed.inspect.run_states import newest_run, run_status
from statebed.metrics.job_metrics import JobMetrics
from statebed.metrics.samples import exposition
from statebed.storage import ScopedStore, get_storage_provider


class WatchedJob:
    """A watched job. Thread-safe."""

    def __init__(self, log: CheckpointLog) -> None:
        self.metrics = JobMetrics(log.job_id)
        self._log = log
        self._lock = threading.Lock()
        self._seen: int | None = None

    def look(self) -> JobMetrics:
        """Add the records committed since the last call and return the metrics."""
        with self._lock:
            head = self._log.head()
            if head is None:
                return self.metrics
            if self._seen is None:
                self._show(head)
            else:
                for epoch in range(max(self._seen + 1, head.min_epoch), head.epoch + 1):
                    record = self._log.observe(epoch).record
                    if record is not None:
                        self.metrics.observe(record)
            self._seen = head.epoch
            status = run_status(self._log, head.run)
            report = newest_run(self._log, head, now_us=self._log.environment.now_us(), status=status)
            self.metrics.show_run(report, status.heartbeat.sources if status.heartbeat is not None else ())
            return self.metrics

    def _show(self, head: pb.CheckpointMetadata) -> None:
        """Show the newest record. A run that has just started has the sizes of its base."""
        base = self._log.observe(head.base).record if head.kind == pb.RUN_START and head.base else None
        for record in (base, head):
            if record is not None:
                self.metrics.show(record)


class WatchedJobs:
    """All jobs of one state location.

    >>> WatchedJobs("memory://").text()
    ''
    """

    def __init__(self, state: str) -> None:
        self._store = get_storage_provider(state)
        self._jobs: dict[str, WatchedJob] = {}

    def text(self) -> str:
        """Return the current metrics as the text that Prometheus scrapes."""
        for name in job_names(self._store):
            if name not in self._jobs:
                self._jobs[name] = WatchedJob(CheckpointLog(ScopedStore(self._store, name), name))
        return exposition(sample for name in sorted(self._jobs) for sample in self._jobs[name].look().samples())
