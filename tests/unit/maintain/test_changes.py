"""Savepoints, stops, garbage, merging and re-assigning: through the live run, and with a run of the tool's own."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from maintained_job import JOB, TABLES, MaintainedJob, maintained_job

from statebed.checkpoint import CheckpointLog, Environment, Run
from statebed.checkpoint.objects import fetch_subtask
from statebed.checkpoint.process_identity import has_ended, own_identity
from statebed.checkpoint.run_status import put_end, put_heartbeat
from statebed.errors import (
    CleanupError,
    CorruptRecordError,
    EpochNotRetainedError,
    FencedError,
    InputError,
    JobNotFoundError,
    ProtocolError,
    RequestTimeoutError,
    SavepointError,
)
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.inspect.verification import verify_log
from statebed.maintain import (
    RemovedFiles,
    Through,
    carry_out,
    compact_offline,
    create_savepoint,
    drop_savepoint,
    find_garbage,
    is_over,
    list_savepoints,
    remove_garbage,
    rescale_offline,
    stop_job,
)
from statebed.protocol.requests import CleanUp, Compact, Stop
from statebed.storage import MemoryStore


@pytest.fixture
def job() -> Iterator[MaintainedJob]:
    """Epochs 2 to 5."""
    with maintained_job() as made:
        made.open()
        for _ in range(4):
            made.epoch()
        yield made


def log_of(job: MaintainedJob) -> CheckpointLog:
    return CheckpointLog(job.store, JOB, job.environment)


WAIT_SECONDS = 120.0
"""Longer than any answer takes on a busy machine."""


@contextmanager
def serving(job: MaintainedJob, every_s: float = 0.01) -> Iterator[list[object]]:
    """Run the live run on a separate thread, where it commits what is requested."""
    ended = threading.Event()
    effects: list[object] = []

    def serve() -> None:
        while not ended.wait(every_s):
            waiting = job.run.serve_requests()
            if waiting:
                effects.extend(waiting)
                job.run.commit(job.run.carry_over())

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield effects
    finally:
        ended.set()
        thread.join(WAIT_SECONDS)


def live_log(job: MaintainedJob) -> CheckpointLog:
    """Return the log as a tool of another process sees it: with the real clock."""
    return CheckpointLog(job.store, JOB, Environment())


def check_goes_on(job: MaintainedJob) -> None:
    """Check that the state is unchanged, and that the job continues with it."""
    before = job.state_after(max(job.states))
    assert job.read(log_of(job).head() or pb.CheckpointMetadata()) == before
    job.states[job.open().head.base] = before
    record = job.epoch()
    assert job.read(record) == job.states[record.epoch]
    assert verify_log(log_of(job)).whole


# ---- through the live run ------------------------------------------------------------------------------------------


def test_the_live_run_makes_and_drops_savepoints(job: MaintainedJob) -> None:
    with serving(job):
        made = create_savepoint(live_log(job), "monday", epoch=4, through=Through.LIVE_RUN, timeout_s=WAIT_SECONDS)
        assert made.run == 1
        (found,) = list_savepoints(log_of(job))
        assert (found.name, found.epoch, found.made_in, found.problem) == ("monday", 4, made.epoch, "")
        drop_savepoint(live_log(job), "monday", through=Through.LIVE_RUN, timeout_s=WAIT_SECONDS)
    assert list_savepoints(log_of(job)) == []
    assert not list(job.store.list(names.REQUESTS))


def test_the_live_run_receives_requests_to_stop_clean_up_and_compact(job: MaintainedJob) -> None:
    with serving(job) as effects:
        stop_job(live_log(job), drain=True, through=Through.LIVE_RUN, timeout_s=WAIT_SECONDS)
        remove_garbage(live_log(job), through=Through.LIVE_RUN, timeout_s=WAIT_SECONDS)
        carry_out(
            live_log(job), pb.Request(compact=pb.CompactRequest()), through=Through.LIVE_RUN, timeout_s=WAIT_SECONDS
        )
    assert effects == [Stop(drain=True), CleanUp(), Compact()]


def test_silence_is_explained_and_the_request_is_withdrawn(job: MaintainedJob) -> None:
    with pytest.raises(
        RequestTimeoutError, match="no run of the job answered within 1 s; its newest record, 5"
    ) as told:
        create_savepoint(log_of(job), "monday", through=Through.LIVE_RUN, timeout_s=1)
    assert "--offline" in told.value.fix
    assert not list(job.store.list(names.REQUESTS))


def test_what_cannot_be_granted_is_refused_before_anything_is_written(job: MaintainedJob) -> None:
    before = {info.path for info in job.store.list("")}
    for through in Through:
        with pytest.raises(SavepointError, match="no savepoint 'friday'"):
            drop_savepoint(log_of(job), "friday", through=through)
        with pytest.raises(EpochNotRetainedError, match="epoch 99"):
            create_savepoint(log_of(job), "monday", epoch=99, through=through)
    with pytest.raises(InputError, match="a drain needs the live run"):
        stop_job(log_of(job), drain=True, through=Through.OWN_RUN)
    with pytest.raises(InputError, match="from 1 to 65536, got 0"):
        rescale_offline(log_of(job), 0)
    with pytest.raises(InputError, match="no table 'nothing' of operator 'totals'"):
        compact_offline(log_of(job), operator="totals", table="nothing")
    assert {info.path for info in job.store.list("")} == before


def test_a_job_without_a_readable_newest_record_is_left_to_repair(job: MaintainedJob) -> None:
    empty = CheckpointLog(MemoryStore(), JOB)
    with pytest.raises(JobNotFoundError):
        list_savepoints(empty)
    job.store.put(names.record(5), b"")
    with pytest.raises(CorruptRecordError, match="newest record, 5") as told:
        create_savepoint(log_of(job), "monday", through=Through.OWN_RUN)
    assert "statebed repair" in told.value.fix


# ---- with a run of its own -----------------------------------------------------------------------------------------

Change = Callable[[CheckpointLog], object]
CHANGES: dict[str, Change] = {
    "savepoint": lambda log: create_savepoint(log, "monday", through=Through.OWN_RUN),
    "stop": lambda log: stop_job(log, drain=False, through=Through.OWN_RUN),
    "clean up": lambda log: remove_garbage(log, through=Through.OWN_RUN, grace_us=0),
    "merge": compact_offline,
    "re-assign": lambda log: rescale_offline(log, 5),
}


@pytest.mark.parametrize("name", CHANGES)
def test_p3_a_run_of_its_own_fences_the_live_one_and_leaves_the_state_as_it_is(job: MaintainedJob, name: str) -> None:
    assert CHANGES[name](log_of(job)) is not None
    with pytest.raises(FencedError):
        job.run.commit(job.run.carry_over())
    assert (log_of(job).head() or pb.CheckpointMetadata()).min_epoch == 1
    check_goes_on(job)


@pytest.mark.parametrize("parallelism", [1, 3, 7])
def test_p6_re_assigned_state_is_the_same_and_nothing_is_rewritten(job: MaintainedJob, parallelism: int) -> None:
    job.epoch(edits=job.merged())
    data = {info.path for info in job.store.list("") if info.path.endswith(".parquet")}
    assert rescale_offline(log_of(job), parallelism) is not None
    assert rescale_offline(log_of(job), parallelism) is None
    assert {info.path for info in job.store.list("") if info.path.endswith(".parquet")} == data
    head = log_of(job).head()
    assert head is not None
    assert head.parallelism == parallelism
    assert [len(entry.subtasks) for entry in head.operators] == [parallelism] * len(TABLES)
    assert job.read(head, parallelism=parallelism) == job.states[6]
    job.parallelism = parallelism
    check_goes_on(job)


def test_all_files_of_a_job_are_merged_and_a_second_time_finds_nothing_to_do(job: MaintainedJob) -> None:
    done = compact_offline(log_of(job))
    assert done.changed is not None
    counts = {one.table: (one.files_before, one.files_after) for one in done.tables}
    assert counts["counts"] == (8, 2)
    assert sum(one.bytes_after for one in done.tables) < sum(one.bytes_before for one in done.tables)
    check_goes_on(job)
    compact_offline(log_of(job))
    job.open()
    assert compact_offline(log_of(job)).changed is None
    job.run.commit(job.run.carry_over())  # no run is fenced if there is nothing to do


def test_files_of_one_table_are_merged_alone(job: MaintainedJob) -> None:
    seen: list[tuple[int, int, str]] = []
    compact_offline(log_of(job), operator="totals", table="counts", on_subtask=lambda *one: seen.append(one))
    assert seen == [(1, 2, "totals, subtask 0"), (2, 2, "totals, subtask 1")]
    head = log_of(job).head()
    assert head is not None
    (orders,) = [entry for entry in head.operators if entry.operator_id == "minutes"]
    assert len(fetch_subtask(job.store, orders.subtasks[0]).tables["orders"].subtasks[0].files) > 1


# ---- garbage -------------------------------------------------------------------------------------------------------


def test_p5_what_a_clean_up_would_remove_is_what_it_removes(job: MaintainedJob) -> None:
    job.retained = 2
    job.open()
    for _ in range(4):
        job.epoch()
    left = names.data_file(10, "totals", "counts", 0, "0" * 32)
    job.store.put(left, b"an attempt that failed")
    before = {info.path for info in job.store.list("")}
    listed = find_garbage(log_of(job), grace_us=0)
    assert {info.path for info in job.store.list("")} == before
    assert not find_garbage(log_of(job), grace_us=1 << 50)
    reasons = {one.path: one.reason.name for one in listed}
    assert reasons[left] == "NEVER_NAMED"
    assert reasons[names.record(3)] == "RECORD"
    removed = remove_garbage(log_of(job), through=Through.OWN_RUN, grace_us=0)
    assert isinstance(removed, RemovedFiles)
    gone = before - {info.path for info in job.store.list("")}
    assert gone == set(reasons)
    assert removed.records == list(reasons.values()).count("RECORD")
    assert removed.records + removed.objects == len(gone)
    assert verify_log(log_of(job)).whole


def test_files_that_the_live_run_may_still_take_are_not_called_garbage(job: MaintainedJob) -> None:
    job.merged()
    assert any(names.run_of_compaction(info.path) for info in job.store.list(""))
    assert find_garbage(log_of(job), grace_us=0) == []


def test_nothing_is_called_garbage_while_a_retained_record_cannot_be_read(job: MaintainedJob) -> None:
    job.store.put(names.record(3), b"")
    with pytest.raises(CleanupError, match=r"the records \[3\] are retained"):
        find_garbage(log_of(job))
    with pytest.raises(CleanupError, match=r"the records \[3\] are retained"):
        remove_garbage(log_of(job), through=Through.OWN_RUN)
    job.epoch()  # nothing fenced it


def test_a_refusal_of_the_live_run_is_raised(job: MaintainedJob) -> None:
    log = live_log(job)
    with serving(job):
        create_savepoint(log, "monday", through=Through.LIVE_RUN, timeout_s=WAIT_SECONDS)
        with pytest.raises((SavepointError, ProtocolError)):
            create_savepoint(log, "monday", through=Through.LIVE_RUN, timeout_s=WAIT_SECONDS)


# ---- jobs that are not running ---------------------------------------------------------------------------------------


def ended(job: MaintainedJob, outcome: pb.RunOutcome.ValueType = pb.RUN_FAILED) -> None:
    """The process of the live run says that it ended."""
    put_end(job.store, pb.RunEnd(run=job.run.number, outcome=outcome, epoch=job.run.head.epoch))


def heartbeat(job: MaintainedJob, *, age_us: int) -> None:
    now_us = Environment().now_us()
    put_heartbeat(job.store, pb.RunHeartbeat(run=job.run.number, time_us=now_us - age_us, every_us=1_000_000, host="h"))


@pytest.mark.parametrize("outcome", [pb.RUN_FAILED, pb.RUN_FINISHED, pb.RUN_STOPPED, pb.RUN_EXITED])
def test_a_job_whose_run_has_ended_is_changed_at_once(job: MaintainedJob, outcome: pb.RunOutcome.ValueType) -> None:
    ended(job, outcome)
    begun = time.monotonic()
    made = create_savepoint(live_log(job), "monday", through=Through.LIVE_RUN, timeout_s=60)
    assert (made.through, made.run) == (Through.IDLE_JOB, made.epoch - 1)
    assert [one.name for one in list_savepoints(live_log(job))] == ["monday"]
    # The tool's own run has ended, too: its record says so.
    dropped = drop_savepoint(live_log(job), "monday", through=Through.LIVE_RUN, timeout_s=60)
    removed = remove_garbage(live_log(job), through=Through.LIVE_RUN, timeout_s=60)
    assert dropped.through is Through.IDLE_JOB
    assert isinstance(removed, RemovedFiles)
    assert removed.changed.through is Through.IDLE_JOB
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize("status", [pb.STOPPED, pb.DRAINED])
def test_so_is_one_whose_last_record_says_that_it_stopped(
    job: MaintainedJob, status: pb.RecordStatus.ValueType
) -> None:
    job.run.commit(job.run.carry_over(status))
    made = create_savepoint(live_log(job), "monday", through=Through.LIVE_RUN, timeout_s=60)
    assert made.through is Through.IDLE_JOB


def test_stopping_a_job_that_is_not_running_does_nothing(job: MaintainedJob) -> None:
    ended(job)
    before = job.run.head.epoch
    done = stop_job(live_log(job), drain=False, through=Through.LIVE_RUN, timeout_s=60)
    assert (done.through, done.epoch) == (Through.NO_RUN, before)
    with pytest.raises(InputError, match=r"not running.*windows"):
        stop_job(live_log(job), drain=True, through=Through.LIVE_RUN, timeout_s=60)
    assert live_log(job).recover().last_number == before


def test_a_run_that_begins_meanwhile_is_asked_and_not_fenced(
    job: MaintainedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended(job)
    begun: list[Run] = []

    def late(log: CheckpointLog, head: pb.CheckpointMetadata) -> bool:
        found = is_over(log, head)
        if not begun:
            begun.append(Run.open(job.store, JOB))
        return found

    monkeypatch.setattr("statebed.maintain.tool_runs.is_over", late)
    with pytest.raises(RequestTimeoutError, match=r"no run of the job answered within 0\.3 s"):
        create_savepoint(live_log(job), "monday", through=Through.LIVE_RUN, timeout_s=0.3)
    begun[0].check_live()


def test_a_run_that_gives_no_sign_of_life_is_not_waited_for_long(job: MaintainedJob) -> None:
    heartbeat(job, age_us=60_000_000)
    begun = time.monotonic()
    with pytest.raises(RequestTimeoutError, match=r"within 5 s.*run 1 vanished") as raised:
        create_savepoint(live_log(job), "monday", through=Through.LIVE_RUN, timeout_s=60)
    assert time.monotonic() - begun < 20
    assert raised.value.fix.startswith("pass --offline")


@pytest.mark.skipif(not own_identity(), reason="the system does not show its processes")
def test_a_job_whose_process_was_killed_on_this_machine_is_changed_at_once(job: MaintainedJob) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", f"import {own_identity.__module__} as m; print(m.own_identity(), flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout is not None
    identity = driver.stdout.readline().strip()
    sign = pb.RunHeartbeat(
        run=job.run.number,
        time_us=Environment().now_us(),
        every_us=60_000_000,
        process_id=driver.pid,
        process_identity=identity,
    )
    put_heartbeat(job.store, sign)
    log = live_log(job)
    assert not is_over(log, job.run.head)
    driver.kill()
    while not is_over(log, job.run.head):  # also before its parent has waited for it
        time.sleep(0.01)
    driver.communicate()
    begun = time.monotonic()
    stopped = stop_job(log, drain=False, through=Through.LIVE_RUN, timeout_s=60)
    assert stopped.through is Through.NO_RUN
    made = create_savepoint(log, "monday", through=Through.LIVE_RUN, timeout_s=60)
    assert made.through is Through.IDLE_JOB
    assert time.monotonic() - begun < 5


def test_a_process_of_another_machine_or_of_an_unknown_one_is_not_called_ended() -> None:
    identity = own_identity()
    assert not has_ended(os.getpid(), identity)
    for other in ("", "other-boot/pid:[1]/123", identity.replace("pid:", "other:")):
        assert not has_ended(1 << 30, other)


def test_a_run_that_gives_signs_of_life_is_asked(job: MaintainedJob) -> None:
    heartbeat(job, age_us=0)
    with serving(job):
        made = create_savepoint(live_log(job), "monday", through=Through.LIVE_RUN, timeout_s=WAIT_SECONDS)
    assert made.through is Through.LIVE_RUN
