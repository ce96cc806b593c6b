"""The tools on the state of a job on Spark: repaired, merged and re-assigned between starts, asked while it runs."""

import time
from pathlib import Path
from typing import Any

from statebed.checkpoint import CheckpointLog
from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.jobs import open_log
from statebed.inspect.verification import verify_log
from statebed.maintain import (
    Through,
    carry_out,
    compact_offline,
    create_savepoint,
    list_savepoints,
    plan_repair,
    remove_garbage,
    repair,
    rescale_offline,
    stop_job,
)

TIMEOUT_S = 60.0


def log_of(rides: Any) -> CheckpointLog:
    return open_log(str(rides.state), "rides")


def test_p7_a_job_on_spark_whose_state_was_damaged_is_repaired_and_gives_the_right_results(rides: Any) -> None:
    rides.add_files(3)
    rides.run()
    head = rides.record()
    assert verify_log(log_of(rides)).whole
    damaged = max((rides.state / "rides" / "checkpoints").glob("*/data/*.parquet"))
    data = bytearray(damaged.read_bytes())
    data[len(data) // 3] ^= 16
    damaged.write_bytes(bytes(data))

    log = log_of(rides)
    found = verify_log(log)
    assert [Path(one.path).name for one in found.findings] == [damaged.name]
    plan = plan_repair(log, found)
    assert plan.needed
    assert plan.base < head.epoch
    assert set(plan.published) <= set(plan.lost)
    assert plan.published
    repair(log, plan)

    rides.add_files(1)
    rides.run()  # without a word about a rollback: the repair has said it
    assert rides.results() == rides.expected()
    after = verify_log(log_of(rides))
    assert after.head_whole
    assert set(after.damaged_epochs) <= set(range(plan.base + 1, head.epoch + 1))


def test_p6_state_that_was_merged_and_re_assigned_between_starts_gives_the_same_results(rides: Any) -> None:
    rides.add_files(2)
    rides.run()
    compact_offline(log_of(rides))
    assert rescale_offline(log_of(rides), 5) is not None
    assert rides.record().parallelism == 5
    rides.add_files(1)
    rides.run(parallelism=None)
    assert {entry.parallelism for entry in rides.record().operators} == {5}
    rides.add_files(1)
    rides.run(parallelism=2)
    assert rides.results() == rides.expected()
    assert verify_log(log_of(rides)).whole


def test_a_running_job_makes_savepoints_merges_cleans_up_and_stops_when_it_is_asked(rides: Any) -> None:
    rides.add_files(3)
    query = rides.job().start(processing_time="200 milliseconds")
    log = log_of(rides)
    deadline = time.monotonic() + TIMEOUT_S
    while rides.record().kind != pb.EPOCH and time.monotonic() < deadline:
        time.sleep(0.1)
    try:
        create_savepoint(log, "monday", through=Through.LIVE_RUN, timeout_s=TIMEOUT_S)
        assert [one.name for one in list_savepoints(log)] == ["monday"]
        carry_out(log, pb.Request(compact=pb.CompactRequest()), through=Through.LIVE_RUN, timeout_s=TIMEOUT_S)
        remove_garbage(log, through=Through.LIVE_RUN, timeout_s=TIMEOUT_S)
        assert verify_log(log).whole
        stop_job(log, drain=True, through=Through.LIVE_RUN, timeout_s=TIMEOUT_S)
        assert query.await_termination(TIMEOUT_S)
    finally:
        query.stop()
    assert log.read(rides.record().epoch).status == pb.DRAINED
    assert not list(log.store.list("requests"))
