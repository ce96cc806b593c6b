"""Metrics computed from records, which Prometheus' own parser reads back."""

from collections.abc import Iterable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from statebed.checkpoint import CheckpointLog, Environment, EpochDraft, Run
from statebed.checkpoint.run_status import put_end, put_heartbeat
from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.run_states import RunReport, RunState, UndeliveredSink
from statebed.metrics import CATALOGUE, Event, JobMetrics, MetricKind, WatchedJobs, exposition
from statebed.metrics.samples import Sample
from statebed.storage import MemoryStore, ScopedStore, get_storage_provider

SECOND = 1_000_000
Values = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def values(text: str) -> Values:
    """Everything that the parser of prometheus_client finds."""
    found: Values = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found
            found[key] = sample.value
    return found


def value(text: str, name: str, **labels: str) -> float | None:
    return values(text).get((name, tuple(sorted({"job_name": "rides", **labels}.items()))))


def text_of(*jobs: JobMetrics) -> str:
    return exposition(one for job in jobs for one in job.samples())


def figures(*, run_read_bytes: int = 0, table: str = "t") -> pb.EpochFigures:
    return pb.EpochFigures(
        phases_us={"merge": 2 * SECOND, "read": SECOND},
        previous_phases_us={"commit": SECOND // 2},
        operators=[
            pb.OperatorFigures(
                operator_id="op",
                tables=[pb.TableFigures(table=table, rows=5, memory_bytes=6, store_bytes=7, spills=2, hits=3)],
                bytes_written=11,
                busy_us=SECOND,
                rows_expired=4,
            )
        ],
        hosts=[
            pb.HostFigures(
                host="h",
                budget_bytes=100,
                peak_bytes=60,
                holders={"op.t": 50},
                spilled_bytes=8,
                shares={"op": 40},
                held={"op": 50},
            )
        ],
        compaction=pb.CompactionFigures(rounds=1, read_bytes=run_read_bytes),
    )


def record(epoch: int, *, run: int = 1, given: pb.EpochFigures | None = None) -> pb.CheckpointMetadata:
    return pb.CheckpointMetadata(
        job_id="rides",
        epoch=epoch,
        run=run,
        min_epoch=1,
        kind=pb.EPOCH,
        start_time_us=10 * SECOND,
        finish_time_us=13 * SECOND,
        parallelism=2,
        operators=[
            pb.OperatorEntry(
                operator_id="op",
                rows_in=10,
                rows_late=1,
                rows_out=3,
                inputs=[pb.InputWatermark(input="input", watermark_us=5 * SECOND)],
            )
        ],
        sources=[pb.SourceWatermark(source="s", max_event_time_us=9 * SECOND)],
        sinks=[pb.SinkEntry(sink_id="out", operator_id="op")],
        outbox=[pb.OutboxFile(operator_id="op", rows=3), pb.OutboxFile(operator_id="op", stream="late", rows=1)],
        figures=given,
    )


def test_counters_add_up_and_gauges_show_the_newest() -> None:
    metrics = JobMetrics("rides")
    metrics.begin()
    metrics.observe(record(2, given=figures()), {"commit": SECOND, "publish": 3 * SECOND})
    metrics.observe(record(3, given=figures()), {"commit": SECOND, "publish": 3 * SECOND})
    text = text_of(metrics)
    assert value(text, "statebed_up") == 1
    assert value(text, "statebed_epoch") == 3
    assert value(text, "statebed_epochs_total") == 2
    assert value(text, "statebed_rows_in_total", operator="op") == 20
    assert value(text, "statebed_rows_late_total", operator="op") == 2
    assert value(text, "statebed_sink_rows_total", sink="out") == 6
    assert value(text, "statebed_phase_seconds_total", phase="merge") == 4
    assert value(text, "statebed_phase_seconds_total", phase="publish") == 6
    assert value(text, "statebed_phase_seconds_total", phase="commit") == 2
    assert value(text, "statebed_state_bytes", operator="op", table="t", tier="memory") == 6
    assert value(text, "statebed_state_bytes", operator="op", table="t", tier="store") == 7
    assert value(text, "statebed_spills_total", operator="op", table="t") == 4
    assert value(text, "statebed_memory_held_bytes", host="h", holder="op.t") == 50
    assert value(text, "statebed_memory_share_bytes", host="h", holder="op") == 40
    assert value(text, "statebed_memory_share_held_bytes", host="h", holder="op") == 50
    assert value(text, "statebed_spilled_bytes_total", host="h") == 16
    assert value(text, "statebed_watermark_timestamp_seconds", operator="op") == 5
    assert value(text, "statebed_source_event_timestamp_seconds", source="s") == 9
    assert value(text, "statebed_busy_seconds_total", operator="op") == 2
    metrics.end()
    assert value(text_of(metrics), "statebed_up") == 0


def test_durations_are_a_histogram() -> None:
    metrics = JobMetrics("rides")
    metrics.observe(record(2))
    text = text_of(metrics)
    assert value(text, "statebed_epoch_duration_seconds_bucket", le="2.5") == 0
    assert value(text, "statebed_epoch_duration_seconds_bucket", le="5.0") is None
    assert value(text, "statebed_epoch_duration_seconds_bucket", le="5") == 1
    assert value(text, "statebed_epoch_duration_seconds_bucket", le="+Inf") == 1
    assert value(text, "statebed_epoch_duration_seconds_sum") == 3
    assert value(text, "statebed_epoch_duration_seconds_count") == 1


def test_compaction_counts_on_when_a_run_begins_anew() -> None:
    metrics = JobMetrics("rides")
    metrics.observe(record(2, given=figures(run_read_bytes=100)))
    metrics.observe(record(3, given=figures(run_read_bytes=150)))
    metrics.observe(record(5, run=4, given=figures(run_read_bytes=30)))
    assert value(text_of(metrics), "statebed_compaction_read_bytes_total") == 180


def test_series_of_tables_that_are_gone_leave() -> None:
    metrics = JobMetrics("rides")
    metrics.observe(record(2, given=figures(table="old")))
    metrics.observe(record(3, given=figures(table="new")))
    text = text_of(metrics)
    assert value(text, "statebed_state_rows", operator="op", table="old") is None
    assert value(text, "statebed_state_rows", operator="op", table="new") == 5


def test_records_without_figures_give_what_they_know() -> None:
    metrics = JobMetrics("rides")
    metrics.observe(record(2))
    text = text_of(metrics)
    assert value(text, "statebed_rows_in_total", operator="op") == 10
    assert value(text, "statebed_state_rows", operator="op", table="t") is None


def test_rare_events_are_there_before_they_happen() -> None:
    metrics = JobMetrics("rides")
    assert value(text_of(metrics), "statebed_events_total", event="retry") == 0
    metrics.event(Event.RETRY)
    assert value(text_of(metrics), "statebed_events_total", event="retry") == 1


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "<script>", "\u202eabc", "é" * 300])
def test_any_name_is_a_label(name: str) -> None:
    metrics = JobMetrics(name)
    metrics.observe(record(2, given=figures(table=name)))
    found = values(text_of(metrics))
    wanted = tuple(sorted({"job_name": name, "operator": "op", "table": name}.items()))
    assert found["statebed_state_rows", wanted] == 5


def test_each_family_is_there_once_with_help_and_kind_whatever_the_number_of_jobs() -> None:
    one, other = JobMetrics("rides"), JobMetrics("another")
    failed = RunReport(1, RunState.FAILED, end_time_us=SECOND, undelivered=(UndeliveredSink("mail", 2, 1),))
    for metrics in (one, other):
        metrics.begin()
        end, latest = '{"t":{"0":1}}', '{"t":{"0":4}}'
        progress = pb.SourceProgress(source="rides", offsets_behind=3, end_offset=end, latest_offset=latest)
        metrics.show_run(failed, [progress])
        metrics.observe(record(2, given=figures()))
    text = text_of(one, other)
    families = {family.name: family for family in text_string_to_metric_families(text)}
    for metric in CATALOGUE.values():
        name = metric.name.removesuffix("_total") if metric.kind is MetricKind.COUNTER else metric.name
        assert families[name].type == metric.kind.value
        assert families[name].documentation == metric.text
        assert text.count(f"# TYPE {metric.name} ") == 1
        assert all("job_name" in sample.labels for sample in families[name].samples)


def test_names_follow_prometheus_rules() -> None:
    for metric in CATALOGUE.values():
        assert metric.name.startswith("statebed_")
        assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
        assert metric.labels[0] == "job_name"


def test_large_and_broken_numbers_are_written_so_that_they_are_read_back() -> None:
    for number in (0.1, 1e300, float(1 << 60), float("inf")):
        assert value(exposition([Sample("statebed_epoch", ("rides",), number)]), "statebed_epoch") == number


def commit(run: Run, epochs: Iterable[int]) -> None:
    for _ in epochs:
        run.commit(EpochDraft(operators=[pb.OperatorEntry(operator_id="op", rows_in=10)], figures=figures()))


def test_a_watcher_counts_the_records_that_come_after_its_first_look() -> None:
    url = "memory://watched"
    store = get_storage_provider(url)
    assert isinstance(store, MemoryStore)
    run = Run.open(ScopedStore(store, "rides"), "rides", environment=Environment())
    commit(run, range(2))
    watched = WatchedJobs(url)
    first = watched.text()
    assert value(first, "statebed_epoch") == 3
    assert value(first, "statebed_state_rows", operator="op", table="t") == 5
    assert value(first, "statebed_epochs_total") is None
    commit(run, range(3))
    second = watched.text()
    assert value(second, "statebed_epochs_total") == 3
    assert value(second, "statebed_rows_in_total", operator="op") == 30
    assert value(second, "statebed_phase_seconds_total", phase="commit") == 1.5
    assert value(watched.text(), "statebed_epochs_total") == 3
    assert value(second, "statebed_up") is None
    Run.open(ScopedStore(store, "rides"), "rides", environment=Environment())
    again = WatchedJobs(url).text()
    assert value(again, "statebed_state_rows", operator="op", table="t") == 5
    assert CheckpointLog(ScopedStore(store, "rides"), "rides").head() is not None


def test_a_watcher_tells_that_the_newest_run_failed_or_vanished_and_which_sinks_wait() -> None:
    url = "memory://watched-failures"
    store = ScopedStore(get_storage_provider(url), "rides")
    run = Run.open(store, "rides")
    run.commit(run.carry_over())
    watched = WatchedJobs(url)
    assert value(watched.text(), "statebed_run_failed") == 0
    end, latest = '{"t":{"0":1,"1":4}}', '{"t":{"0":13,"1":4}}'
    rides = pb.SourceProgress(source="rides", offsets_behind=12, end_offset=end, latest_offset=latest)
    behind = [rides, pb.SourceProgress(source="files")]
    put_heartbeat(store, pb.RunHeartbeat(run=run.number, time_us=5 * SECOND, every_us=SECOND, sources=behind))
    silent = watched.text()
    assert value(silent, "statebed_run_state", state="vanished") == 1
    assert value(silent, "statebed_last_failure_timestamp_seconds") == 5
    assert value(silent, "statebed_source_offsets_behind", source="rides") == 12
    assert value(silent, "statebed_source_offsets_behind", source="files") is None
    name = "statebed_source_partition_offsets_behind"
    lags = [value(silent, name, source="rides", topic="t", partition=number) for number in ("0", "1")]
    assert lags == [12, 0]
    owed = [pb.UndeliveredSink(sink_id="mail", first_epoch=2, epochs=3)]
    put_end(store, pb.RunEnd(run=run.number, outcome=pb.RUN_FAILED, time_us=9 * SECOND, undelivered=owed))
    failed = watched.text()
    assert value(failed, "statebed_run_state", state="failed") == 1
    assert value(failed, "statebed_run_state", state="vanished") is None
    assert value(failed, "statebed_run_failed") == 1
    assert value(failed, "statebed_last_failure_timestamp_seconds") == 9
    assert value(failed, "statebed_undelivered_epochs", sink="mail") == 3
