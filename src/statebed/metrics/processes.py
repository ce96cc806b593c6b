"""Metrics of all jobs that have run in this process. A job that is restarted keeps its counters."""

import hashlib
import threading

from statebed.metrics.job_metrics import JobMetrics

_lock = threading.Lock()
_known: dict[tuple[str, str], JobMetrics] = {}


def job_metrics(job: str, state: str) -> JobMetrics:
    """Return the metrics of a job. If two jobs of the same name have different states, the later one gets a distinct
    label while the earlier one runs, and replaces it afterwards.
    """
    with _lock:
        found = _known.get((job, state))
        if found is None:
            others = [place for place in _known if place[0] == job]
            for place in others:
                if not _known[place].active:
                    del _known[place]
            taken = any(place in _known for place in others)
            label = f"{job} at {hashlib.sha256(state.encode()).hexdigest()[:6]}" if taken else job
            found = _known[job, state] = JobMetrics(label)
        return found
