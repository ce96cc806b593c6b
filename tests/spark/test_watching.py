"""A job that runs is scraped by an HTTP client, sends to an OpenTelemetry receiver, and logs with ids."""

import json
import logging
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from otlp_receiver import Receiver, receiving
from prometheus_client.parser import text_string_to_metric_families

import statebed as sb
from statebed.errors import InputError
from statebed.inspect.figures import PHASES
from statebed.logs import JsonFormatter
from statebed.metrics import CATALOGUE, WatchedJobs

Values = dict[tuple[str, str, str], float]


@dataclass
class Watched:
    """Everything that was seen of one job from outside."""

    scraped: str
    received: Receiver
    lines: list[dict[str, Any]]
    query: sb.Query
    rides: Any


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(JsonFormatter())
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(json.loads(self.format(record)))


def scraped(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - our own server
        return str(answer.read().decode())


@pytest.fixture(scope="module")
def watched(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    from spark.conftest import Rides  # noqa: PLC0415 - not a module of its own for pytest

    rides = Rides(spark, tmp_path_factory.mktemp("watched"))
    rides.add_files(3)
    handler, logger = Lines(), logging.getLogger("statebed")
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.DEBUG)
    with pytest.MonkeyPatch.context() as patch, receiving() as received:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.url)
        patch.setenv("OTEL_SERVICE_NAME", "rides-service")
        patch.setenv("STATEBED_METRICS_PORT", "0")
        patch.setenv("STATEBED_OPENTELEMETRY", "true")
        query = rides.job().start()
        assert query.metrics_url is not None
        assert query.metrics_url.startswith("http://127.0.0.1:")
        # An epoch without rows may come between them on a machine that is slow.
        deadline = time.monotonic() + 120
        while sum(one.rows_in for one in query.recent_progress) < 3 * 120 and time.monotonic() < deadline:
            time.sleep(0.05)
        text = scraped(query.metrics_url)
        query.stop()
        yield Watched(text, received, handler.lines, query, rides)
    logger.removeHandler(handler)
    logger.setLevel(level)


def test_prometheus_reads_what_a_running_job_serves(watched: Watched) -> None:
    families = {family.name: family for family in text_string_to_metric_families(watched.scraped)}
    names = {sample.name for family in families.values() for sample in family.samples}
    assert {name for name in names if not name.startswith("statebed_epoch_duration")} <= set(CATALOGUE)
    rows = [sample for sample in families["statebed_rows_in"].samples if sample.labels["operator"] == "per_minute"]
    assert [sample.value for sample in rows] == [3 * 120]
    phases = {sample.labels["phase"]: sample.value for sample in families["statebed_phase_seconds"].samples}
    assert set(phases) == set(PHASES)
    assert all(seconds > 0 for seconds in phases.values())
    assert [sample.value for sample in families["statebed_up"].samples if sample.labels["job_name"] == "rides"] == [1]
    assert all(sample.value > 0 for sample in families["statebed_memory_budget_bytes"].samples)
    tiers = {sample.labels["tier"]: sample.value for sample in families["statebed_state_bytes"].samples}
    assert tiers["store"] > 0


def test_the_endpoint_ends_with_the_query(watched: Watched) -> None:
    assert watched.query.metrics_url is not None
    with pytest.raises(urllib.error.URLError):
        scraped(watched.query.metrics_url)


def test_a_process_beside_the_job_shows_the_same_sizes(watched: Watched) -> None:
    families = {f.name: f for f in text_string_to_metric_families(WatchedJobs(str(watched.rides.state)).text())}
    mine = {f.name: f for f in text_string_to_metric_families(watched.scraped)}
    for name in ("statebed_state_rows", "statebed_state_files"):
        assert families[name].samples == mine[name].samples


def test_each_epoch_is_a_span_with_its_phases_below(watched: Watched) -> None:
    spans = watched.received.spans
    epochs = [span for span in spans if span.name == "epoch"]
    assert len(epochs) == len(watched.query.recent_progress)
    assert watched.received.services == {"rides-service"}
    for epoch, summary in zip(epochs, watched.query.recent_progress, strict=True):
        told = {one.key: one.value for one in epoch.attributes}
        assert told["statebed.job"].string_value == "rides"
        assert told["statebed.epoch"].int_value == summary.epoch
        assert told["statebed.rows_in"].int_value == summary.rows_in
        children = [span for span in spans if span.parent_span_id == epoch.span_id]
        assert tuple(span.name for span in children) == PHASES
        assert all(span.trace_id == epoch.trace_id for span in children)
        for child in children:
            assert epoch.start_time_unix_nano <= child.start_time_unix_nano <= child.end_time_unix_nano
            assert child.end_time_unix_nano <= epoch.end_time_unix_nano
    assert all(not epoch.status.code for epoch in epochs)


def test_metrics_are_sent_too(watched: Watched) -> None:
    rows = watched.received.metric("statebed.rows_in")[-1]
    assert rows.sum.is_monotonic
    [point] = [one for one in rows.sum.data_points if one.as_int or one.as_double]
    assert (point.as_int or point.as_double) == 3 * 120
    labels = {one.key: one.value.string_value for one in point.attributes}
    assert labels == {"job_name": "rides", "operator": "per_minute"}
    duration = watched.received.metric("statebed.epoch_duration")[-1]
    assert duration.unit == "s"
    assert sum(point.count for point in duration.histogram.data_points) == len(watched.query.recent_progress)
    assert watched.received.metric("statebed.state")[-1].unit == "By"


def test_log_lines_have_the_ids_of_what_they_are_about(watched: Watched) -> None:
    mine = [line for line in watched.lines if line.get("job") == "rides"]
    began = next(line for line in mine if "starts from the state" in line["message"])
    assert (began["run"], began["level"]) == (watched.query.run, "info")
    committed = [line["epoch"] for line in mine if line["message"].endswith("is committed")]
    assert committed == list(range(2, committed[-1] + 1))
    published = [line for line in mine if "is published" in line["message"]]
    assert {line["sink"] for line in published} == {"minutes"}
    summaries = [line for line in mine if "rows in" in line["message"]]
    assert [line["epoch"] for line in summaries] == [one.epoch for one in watched.query.recent_progress]
    assert all(line["level"] == "info" for line in summaries)
    assert not [line for line in mine if line["level"] in {"warning", "error"}]


def test_a_port_that_is_taken_is_refused_before_a_run_opens(rides: Any) -> None:
    rides.add_files(1)
    with socket.socket() as taken, pytest.MonkeyPatch.context() as patch:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        patch.setenv("STATEBED_METRICS_PORT", str(taken.getsockname()[1]))
        with pytest.raises(InputError, match="cannot serve metrics"):
            rides.run()
    assert not (rides.state / "rides" / "checkpoints").exists()
