"""OpenTelemetry export: metrics of all jobs of the process, and a span per epoch with a child span per phase.

If the program has configured OpenTelemetry, its providers are used. Otherwise statebed creates exporters that send OTLP
over HTTP and are configured by the standard variables (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME and so on). They
exist from the start of the first query that needs them to the end of the last one. Names are those of the catalogue in
OpenTelemetry style: `statebed_rows_in_total` becomes `statebed.rows_in`.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from statebed.errors import MissingDependencyError
from statebed.metrics.catalogue import CATALOGUE, DURATION_BUCKETS, Metric, MetricKind
from statebed.metrics.job_metrics import JobMetrics
from statebed.metrics.samples import Sample

_SCOPE = "statebed"
_FLUSH_MS = 5_000
_UNITS = {"seconds": "s", "bytes": "By"}
_DURATION = "statebed_epoch_duration_seconds"
_PROVIDERS = ("tracers", "meters")


@dataclass(frozen=True)
class Phase:
    """A phase of an epoch."""

    name: str
    start_us: int
    end_us: int


@dataclass(frozen=True)
class EpochSpan:
    """An epoch as shown in a trace."""

    start_us: int
    end_us: int
    phases: Sequence[Phase]
    attributes: Mapping[str, str | int]
    problem: str = ""
    """Error of a failed epoch; empty if it succeeded."""


class Telemetry:
    """Providers and instruments, shared by all jobs of a process."""

    def __init__(self) -> None:
        sdk = _sdk()
        self._jobs: list[JobMetrics] = []
        self._own: list[Any] = []
        tracers, meters = sdk.tracers(self._own), sdk.meters(self._own)
        self._tracer = tracers.get_tracer(_SCOPE)
        meter = meters.get_meter(_SCOPE)
        self._sdk = sdk
        self._durations = meter.create_histogram(
            otel_name(CATALOGUE[_DURATION]),
            unit="s",
            description=CATALOGUE[_DURATION].text,
            explicit_bucket_boundaries_advisory=list(DURATION_BUCKETS),
        )
        for metric in CATALOGUE.values():
            if metric.kind is not MetricKind.HISTOGRAM:
                create = (
                    meter.create_observable_counter
                    if metric.kind is MetricKind.COUNTER
                    else meter.create_observable_gauge
                )
                create(otel_name(metric), [self._reader(metric)], unit=_unit(metric), description=metric.text)

    def join(self, metrics: JobMetrics) -> None:
        """Export the metrics of a job."""
        self._jobs.append(metrics)

    def leave(self, metrics: JobMetrics) -> bool:
        """Flush, and stop exporting a job. Return whether no job is left and all providers can be closed."""
        for provider in self._own:
            provider.force_flush(_FLUSH_MS)
        if metrics in self._jobs:
            self._jobs.remove(metrics)
        # Instruments of the program's providers live as long as these.
        return not self._jobs and len(self._own) == len(_PROVIDERS)

    def close(self) -> None:
        """Shut down the providers created here."""
        for provider in self._own:
            provider.shutdown()

    def epoch(self, metrics: JobMetrics, span: EpochSpan) -> None:
        """Export the span of an epoch that has ended, successfully or not."""
        attributes = {f"statebed.{name}": value for name, value in span.attributes.items()}
        parent = self._tracer.start_span("epoch", start_time=span.start_us * 1_000, attributes=attributes)
        inside = self._sdk.inside(parent)
        for phase in span.phases:
            child = self._tracer.start_span(phase.name, context=inside, start_time=phase.start_us * 1_000)
            child.end(phase.end_us * 1_000)
        if span.problem:
            parent.set_status(self._sdk.error(span.problem))
        else:
            put_us = next((phase.start_us for phase in span.phases if phase.name == "commit"), span.end_us)
            self._durations.record((put_us - span.start_us) / 1e6, {"job_name": metrics.job})
        parent.end(span.end_us * 1_000)

    def _reader(self, metric: Metric) -> Callable[[Any], Iterable[Any]]:
        def read(_options: Any) -> Iterator[Any]:
            for job in list(dict.fromkeys(self._jobs)):
                for sample in job.samples():
                    if isinstance(sample, Sample) and sample.metric == metric.name:
                        yield self._sdk.observation(sample.value, dict(zip(metric.labels, sample.labels, strict=True)))

        return read


_lock = threading.Lock()
_shared: Telemetry | None = None


def join_telemetry(metrics: JobMetrics) -> Telemetry:
    """Return the telemetry of this process, created on first use, and add a job to it."""
    global _shared  # noqa: PLW0603 - one for the process
    with _lock:
        if _shared is None:
            _shared = Telemetry()
        _shared.join(metrics)
        return _shared


def leave_telemetry(metrics: JobMetrics) -> None:
    """Remove the job of a query that has ended; close the telemetry with the last one."""
    global _shared  # noqa: PLW0603 - one for the process
    with _lock:
        if _shared is not None and _shared.leave(metrics):
            _shared.close()
            _shared = None


def otel_name(metric: Metric) -> str:
    """Return a name in OpenTelemetry style: dots, no unit, no `_total`.

    >>> otel_name(CATALOGUE["statebed_busy_seconds_total"])
    'statebed.busy'
    """
    name = metric.name.removesuffix("_total")
    for unit in _UNITS:
        name = name.removesuffix(f"_{unit}")
    return name.replace("_", ".", 1)


def _unit(metric: Metric) -> str:
    name = metric.name.removesuffix("_total")
    return next((unit for suffix, unit in _UNITS.items() if name.endswith(f"_{suffix}")), "1")


class _Sdk:
    """The parts of OpenTelemetry in use, imported on demand."""

    def __init__(self) -> None:
        from opentelemetry import metrics, trace  # noqa: PLC0415 - optional
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # noqa: PLC0415
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

        self._trace, self._metrics = trace, metrics
        self._new_tracers: Callable[[], Any] = lambda: (TracerProvider(), BatchSpanProcessor(OTLPSpanExporter()))
        self._new_meters: Callable[[], Any] = lambda: MeterProvider(
            [PeriodicExportingMetricReader(OTLPMetricExporter())]
        )
        self._kinds = (TracerProvider, MeterProvider)
        self.observation = metrics.Observation

    def tracers(self, own: list[Any]) -> Any:
        """Return the program's tracer provider, or create one and append it to `own`."""
        provider = self._trace.get_tracer_provider()
        if isinstance(provider, self._kinds[0]):
            return provider
        tracers, processor = self._new_tracers()
        tracers.add_span_processor(processor)
        own.append(tracers)
        return tracers

    def meters(self, own: list[Any]) -> Any:
        """Return the program's meter provider, or create one and append it to `own`."""
        provider = self._metrics.get_meter_provider()
        if isinstance(provider, self._kinds[1]):
            return provider
        own.append(self._new_meters())
        return own[-1]

    def inside(self, parent: Any) -> Any:
        return self._trace.set_span_in_context(parent)

    def error(self, problem: str) -> Any:
        return self._trace.Status(self._trace.StatusCode.ERROR, problem)


def _sdk() -> _Sdk:
    try:
        return _Sdk()
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"the setting opentelemetry needs {error.name}", fix="pip install 'statebed[opentelemetry]'"
        ) from error
