"""The metrics of all jobs that have run in this process; a job that starts again goes on with its counters."""

import hashlib
import threading

from statebed.metrics.job_metrics import JobMetrics

_lock = threading.Lock()
_known: dict[tuple[str, str], JobMetrics] = {}


def job_metrics(job: str, state: str) -> JobMetrics:
    """Those of a job. Of two jobs with one name and different states, the second is told apart by its label."""
    with _lock:
        found = _known.get((job, state))
        if found is None:
            taken = {metrics.job for metrics in _known.values()}
            label = job if job not in taken else f"{job} at {hashlib.sha256(state.encode()).hexdigest()[:6]}"
            found = _known[job, state] = JobMetrics(label)
        return found
