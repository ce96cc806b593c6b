"""Observers of a query: the metrics of its job, the endpoint that serves them, OpenTelemetry."""

from dataclasses import dataclass

from statebed.format import checkpoint_pb2 as pb
from statebed.metrics.endpoint import ENDPOINTS
from statebed.metrics.job_metrics import JobMetrics, job_metrics
from statebed.metrics.telemetry import EpochSpan, Telemetry, join_telemetry, leave_telemetry
from statebed.spark.plan.job_plan import JobPlan


@dataclass(frozen=True)
class Observers:
    """Observers of one query, from before its run opens until it has ended."""

    metrics: JobMetrics
    url: str | None
    """URL of the Prometheus metrics, or None."""
    telemetry: Telemetry | None

    @classmethod
    def open(cls, plan: JobPlan) -> "Observers":
        """Start the observers. Raise if the port is in use or a package is missing."""
        settings, metrics = plan.settings, job_metrics(plan.job_id, plan.state_url)
        telemetry = join_telemetry(metrics) if settings.opentelemetry else None
        url = None
        try:
            if settings.metrics_port is not None:
                url = ENDPOINTS.join(metrics, address=settings.metrics_address, port=settings.metrics_port)
        except BaseException:
            leave_telemetry(metrics)
            raise
        metrics.begin()
        return cls(metrics, url, telemetry)

    def began(self, head: pb.CheckpointMetadata, base: pb.CheckpointMetadata | None) -> None:
        """Report that a run has started on the state of `base`."""
        for record in (base, head):
            if record is not None:
                self.metrics.show(record)

    def epoch(self, span: EpochSpan) -> None:
        """Report that an epoch has ended, successfully or not."""
        if self.telemetry is not None:
            self.telemetry.epoch(self.metrics, span)

    def close(self) -> None:
        """Stop observing the query, which has ended; other queries are not affected."""
        self.metrics.end()
        if self.url is not None:
            ENDPOINTS.leave(self.metrics)
        if self.telemetry is not None:
            leave_telemetry(self.metrics)
