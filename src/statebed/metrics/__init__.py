"""Metrics of jobs for Prometheus, OpenTelemetry and logs."""

from statebed.metrics.catalogue import CATALOGUE, Metric, MetricKind
from statebed.metrics.endpoint import ENDPOINTS, Endpoints
from statebed.metrics.job_metrics import Event, JobMetrics
from statebed.metrics.samples import CONTENT_TYPE, exposition
from statebed.metrics.watched import WatchedJob, WatchedJobs

__all__ = [
    "CATALOGUE",
    "CONTENT_TYPE",
    "ENDPOINTS",
    "Endpoints",
    "Event",
    "JobMetrics",
    "Metric",
    "MetricKind",
    "WatchedJob",
    "WatchedJobs",
    "exposition",
]
