"""Records and progress say what an epoch took."""

from typing import Any

import statebed as sb
from statebed.checkpoint import CheckpointLog
from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.figures import PHASES
from statebed.storage import ScopedStore, get_storage_provider


def records(rides: Any) -> list[pb.CheckpointMetadata]:
    log = CheckpointLog(ScopedStore(get_storage_provider(rides.state), "rides"), "rides")
    return [log.read(epoch) for epoch in range(1, rides.record().epoch + 1)]


def test_a_record_says_what_its_epoch_took(rides: Any) -> None:
    rides.add_files(2)
    query = rides.run()
    start, first, second, *_ = records(rides)
    assert start.kind == pb.RUN_START
    assert not start.HasField("figures")
    for record in (first, second):
        figures = record.figures
        assert set(figures.phases_us) == {"planning", "read", "shuffle", "merge", "write"}
        assert all(us > 0 for us in figures.phases_us.values())
        assert sum(figures.phases_us.values()) <= record.finish_time_us - record.start_time_us
        [operator] = figures.operators
        assert operator.operator_id == "per_minute"
        assert 0 < operator.busy_us <= figures.phases_us["merge"] + figures.phases_us["write"] + 1
        [table] = operator.tables
        assert table.rows > 0
        assert table.store_bytes > 0
        assert table.files > 0
        assert operator.bytes_written > table.store_bytes // 2
        [host] = figures.hosts
        assert host.host
        assert 0 < host.peak_bytes <= host.budget_bytes
        assert all(name.startswith("per_minute") for name in host.holders)
        assert 0.95 * host.peak_bytes <= sum(host.holders.values()) <= host.peak_bytes
        assert host.cache_limit_bytes > 0
    assert not first.figures.previous_phases_us
    assert set(second.figures.previous_phases_us) == {"commit", "publish"}
    assert second.figures.previous_phases_us["publish"] > 0
    assert query.recent_progress[1].figures == second.figures
    assert tuple(query.recent_progress[0].phases_us) == PHASES
    assert sum(query.recent_progress[0].phases_us.values()) <= query.recent_progress[0].duration_us


def test_tables_of_all_levels_are_in_the_figures(rides: Any) -> None:
    rides.add_files(3)
    job = sb.Job("rides", state=rides.state, parallelism=3, spark=rides.spark)
    source = job.source(rides.frame(), name="rides", watermark=("ts", "1 minute"))
    per_minute = source.group_by("driver", sb.tumbling("1 minute"), name="per_minute").agg(trips=sb.count())
    total = per_minute.group_by("driver", sb.tumbling("5 minutes"), name="per_five").agg(trips=sb.sum("trips"))
    total.write("parquet", path=str(rides.out))
    job.start(available_now=True).await_termination(120)
    figures = records(rides)[-1].figures
    assert [one.operator_id for one in figures.operators] == ["per_minute", "per_five"]
    assert all(one.busy_us for one in figures.operators)
    assert all(table.rows for table in figures.operators[1].tables)


def test_a_record_without_work_keeps_the_sizes_of_its_head_and_no_events(rides: Any) -> None:
    rides.add_files(2)
    query = rides.job().start()
    assert query.await_epoch(3, timeout=120)
    query.stop()
    *_, before, last = records(rides)
    assert last.status == pb.STOPPED
    assert not last.figures.phases_us
    assert last.figures.previous_phases_us["commit"] > 0
    sizes = [(one.table, one.rows, one.store_bytes) for one in last.figures.operators[0].tables]
    assert sizes == [(one.table, one.rows, one.store_bytes) for one in before.figures.operators[0].tables]
    assert not last.figures.operators[0].bytes_written
    assert not last.figures.hosts
