"""OpenTelemetry: metrics of all jobs of the process, and a span for each epoch with one below it for each phase.

Where the program has set up OpenTelemetry, that is used as it is. Otherwise exporters of our own send by OTLP over
HTTP, configured by the standard variables (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME and so on), from the first
query that wants it until the last has ended. Names are those of the catalogue, as OpenTelemetry writes them:
`statebed_rows_in_total` is `statebed.rows_in`.
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
    """A part of an epoch."""

    name: str
    start_us: int
    end_us: int


@dataclass(frozen=True)
class EpochSpan:
    """One epoch, as a trace shows it."""

    start_us: int
    end_us: int
    phases: Sequence[Phase]
    attributes: Mapping[str, str | int]
    problem: str = ""
    """What it failed with."""


class Telemetry:
    """Providers and instruments; for one or more jobs."""

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
                made = (
                    meter.create_observable_counter
                    if metric.kind is MetricKind.COUNTER
                    else meter.create_observable_gauge
                )
                made(otel_name(metric), [self._reader(metric)], unit=_unit(metric), description=metric.text)

    def join(self, metrics: JobMetrics) -> None:
        """Send the metrics of a job, too."""
        self._jobs.append(metrics)

    def leave(self, metrics: JobMetrics) -> bool:
        """Send what there is; whether nobody is left, and nothing here is of use to others."""
        for provider in self._own:
            provider.force_flush(_FLUSH_MS)
        if metrics in self._jobs:
            self._jobs.remove(metrics)
        # Instruments in what the program made live as long as that.
        return not self._jobs and len(self._own) == len(_PROVIDERS)

    def close(self) -> None:
        """End what was made here."""
        for provider in self._own:
            provider.shutdown()

    def epoch(self, metrics: JobMetrics, span: EpochSpan) -> None:
        """An epoch has ended, well or not."""
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
                for one in job.samples():
                    if isinstance(one, Sample) and one.metric == metric.name:
                        yield self._sdk.observation(one.value, dict(zip(metric.labels, one.labels, strict=True)))

        return read


_lock = threading.Lock()
_shared: Telemetry | None = None


def join_telemetry(metrics: JobMetrics) -> Telemetry:
    """The one of this process, made when it is first wanted."""
    global _shared  # noqa: PLW0603 - one for the process
    with _lock:
        if _shared is None:
            _shared = Telemetry()
        _shared.join(metrics)
        return _shared


def leave_telemetry(metrics: JobMetrics) -> None:
    """A query has ended; with the last one, so does what was made for them."""
    global _shared  # noqa: PLW0603 - one for the process
    with _lock:
        if _shared is not None and _shared.leave(metrics):
            _shared.close()
            _shared = None


def otel_name(metric: Metric) -> str:
    """A name as OpenTelemetry writes it: dots, no unit, no `_total`.

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
    """What is used of OpenTelemetry, imported when it is wanted."""

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
        """The program's, else new ones, which go to `own`."""
        found = self._trace.get_tracer_provider()
        if isinstance(found, self._kinds[0]):
            return found
        made, processor = self._new_tracers()
        made.add_span_processor(processor)
        own.append(made)
        return made

    def meters(self, own: list[Any]) -> Any:
        """The program's, else new ones, which go to `own`."""
        found = self._metrics.get_meter_provider()
        if isinstance(found, self._kinds[1]):
            return found
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
