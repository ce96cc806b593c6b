"""The metrics of all jobs that have run in this process; a job that starts again goes on with its counters."""

import hashlib
import threading

from statebed.metrics.job_metrics import JobMetrics

_lock = threading.Lock()
_known: dict[tuple[str, str], JobMetrics] = {}


def job_metrics(job: str, state: str) -> JobMetrics:
    """Those of a job. Of two with one name and different states, the later one is told apart by its label while the
    earlier one runs, and takes its place afterwards.
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
