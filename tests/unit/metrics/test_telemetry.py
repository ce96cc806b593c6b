"""OpenTelemetry as a program sees it: spans and metrics at a receiver, or in what the program has set up itself."""

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from otlp_receiver import Receiver, receiving

from statebed.metrics import JobMetrics
from statebed.metrics.catalogue import CATALOGUE
from statebed.metrics.telemetry import EpochSpan, Phase, join_telemetry, leave_telemetry, otel_name

SECOND = 1_000_000


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with receiving() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
        yield found


def span(problem: str = "") -> EpochSpan:
    phases = (Phase("read", SECOND, 2 * SECOND), Phase("commit", 2 * SECOND, 3 * SECOND))
    return EpochSpan(SECOND, 4 * SECOND, phases, {"job": "rides", "epoch": 7}, problem)


def test_an_epoch_that_failed_is_a_span_with_an_error(receiver: Receiver) -> None:
    metrics = JobMetrics("rides")
    join_telemetry(metrics).epoch(metrics, span("StorageError: away"))
    leave_telemetry(metrics)
    epoch = next(one for one in receiver.spans if one.name == "epoch")
    assert (epoch.status.code, epoch.status.message) == (2, "StorageError: away")
    assert epoch.start_time_unix_nano == SECOND * 1_000
    assert len([one for one in receiver.spans if one.parent_span_id == epoch.span_id]) == 2


def test_jobs_share_what_sends_and_all_of_it_has_come_when_the_last_has_ended(receiver: Receiver) -> None:
    one, other = JobMetrics("one"), JobMetrics("other")
    telemetry = join_telemetry(one)
    assert join_telemetry(other) is telemetry
    leave_telemetry(one)
    telemetry.epoch(other, span())
    leave_telemetry(other)
    assert [found.name for found in receiver.spans].count("epoch") == 1
    events = receiver.metric("statebed.events")[-1]
    assert {label.value.string_value for point in events.sum.data_points for label in point.attributes} >= {"other"}
    assert receiver.metric("statebed.epoch_duration")[-1].histogram.data_points[0].sum == 1.0


def test_a_receiver_that_is_away_holds_nobody_up_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    metrics = JobMetrics("rides")
    join_telemetry(metrics).epoch(metrics, span())
    start = time.monotonic()
    leave_telemetry(metrics)
    assert time.monotonic() - start < 30


def test_names_of_instruments_are_as_unique_as_those_of_metrics() -> None:
    assert len({otel_name(metric) for metric in CATALOGUE.values()}) == len(CATALOGUE)


def test_what_the_program_has_set_up_is_used(receiver: Receiver) -> None:
    code = """
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from statebed.metrics import JobMetrics
from statebed.metrics.telemetry import EpochSpan, join_telemetry, leave_telemetry

spans, reader = InMemorySpanExporter(), InMemoryMetricReader()
tracers = TracerProvider()
tracers.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(tracers)
metrics.set_meter_provider(MeterProvider([reader]))
for _ in range(2):
    job = JobMetrics("rides")
    join_telemetry(job).epoch(job, EpochSpan(1, 2, (), {"job": "rides"}))
    found = reader.get_metrics_data()
    leave_telemetry(job)
names = {one.name for some in found.resource_metrics for scope in some.scope_metrics for one in scope.metrics}
print([one.name for one in spans.get_finished_spans()], "statebed.events" in names)
"""
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "['epoch', 'epoch'] True\n", done.stderr
    assert "Duplicate" not in done.stderr
    assert "already" not in done.stderr
    assert not receiver.spans


def test_without_the_package_the_setting_says_what_to_install() -> None:
    code = """
import sys
sys.modules["opentelemetry"] = None
from statebed.metrics.telemetry import join_telemetry
from statebed.metrics import JobMetrics
try:
    join_telemetry(JobMetrics("rides"))
except Exception as error:
    print(type(error).__name__, error.fix)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "MissingDependencyError pip install 'statebed[opentelemetry]'\n"
