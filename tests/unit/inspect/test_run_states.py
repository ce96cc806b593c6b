"""States of a run, derived from its reports and the time of the last one."""

import pytest

from statebed.checkpoint import CheckpointLog, Run
from statebed.checkpoint.run_status import RunStatus, put_end, put_heartbeat, shortened
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.inspect.run_states import RunState, judge_run, newest_run, problem_lines, run_reports
from statebed.storage import MemoryStore

SECOND = 1_000_000
EVERY = 20 * SECOND
NOW = 1_000 * SECOND


def beat(*, age_s: int, run: int = 3) -> pb.RunHeartbeat:
    return pb.RunHeartbeat(
        job_id="job", run=run, time_us=NOW - age_s * SECOND, every_us=EVERY, epoch=9, host="worker-1", process_id=77
    )


def record(status: pb.RecordStatus.ValueType = pb.COMPLETE) -> pb.CheckpointMetadata:
    return pb.CheckpointMetadata(job_id="job", epoch=9, run=3, status=status)


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (pb.RUN_FINISHED, RunState.FINISHED),
        (pb.RUN_STOPPED, RunState.STOPPED),
        (pb.RUN_DRAINED, RunState.DRAINED),
        (pb.RUN_FAILED, RunState.FAILED),
        (pb.RUN_FENCED, RunState.FENCED),
        (pb.RUN_EXITED, RunState.EXITED),
    ],
)
def test_a_recorded_end_is_the_state_whatever_the_clock_says(outcome: pb.RunOutcome.ValueType, state: RunState) -> None:
    status = RunStatus(3, pb.RunEnd(run=3, outcome=outcome, time_us=NOW), beat(age_s=1))
    for superseded_by in (None, 10):
        found = judge_run(status, last=record(), superseded_by=superseded_by, now_us=NOW)
        assert found.state is state
        assert found.end_time_us == NOW


@pytest.mark.parametrize(("age_s", "state"), [(0, "running"), (59, "running"), (61, "vanished"), (-30, "running")])
def test_a_run_without_an_end_has_vanished_after_three_intervals_of_silence(age_s: int, state: str) -> None:
    found = judge_run(RunStatus(3, None, beat(age_s=age_s)), last=record(), superseded_by=None, now_us=NOW)
    assert found.state.value == state


def test_a_superseded_run_has_vanished_once_it_is_silent_and_may_live_on_until_then() -> None:
    silent = judge_run(RunStatus(3, None, beat(age_s=99)), last=None, superseded_by=10, now_us=NOW)
    assert silent.state is RunState.VANISHED
    assert silent.what == (
        "process 77 on host worker-1 stopped sending heartbeats and recorded no end; run 10 took over"
    )
    living = judge_run(RunStatus(3, None, beat(age_s=9)), last=None, superseded_by=10, now_us=NOW)
    assert living.state is RunState.SUPERSEDED


def test_a_run_that_tells_nothing_is_no_problem_and_its_last_record_may_say_more() -> None:
    quiet = RunStatus(3)
    assert judge_run(quiet, last=record(), superseded_by=None, now_us=NOW).state is RunState.UNKNOWN
    assert judge_run(quiet, last=record(), superseded_by=10, now_us=NOW).state is RunState.SUPERSEDED
    assert judge_run(quiet, last=record(pb.STOPPED), superseded_by=10, now_us=NOW).state is RunState.STOPPED
    assert judge_run(quiet, last=record(pb.DRAINED), superseded_by=None, now_us=NOW).state is RunState.DRAINED


def test_a_stop_whose_end_could_not_be_written_is_a_stop() -> None:
    found = judge_run(RunStatus(3, None, beat(age_s=999)), last=record(pb.STOPPED), superseded_by=None, now_us=NOW)
    assert found.state is RunState.STOPPED


def test_a_problem_is_told_with_reason_place_sinks_and_what_to_do() -> None:
    error = pb.RunError(code="SINK", kind="SinkError", what="the function failed", where="epoch 9", fix="mend it")
    owed = [
        pb.UndeliveredSink(sink_id="a", first_epoch=9, epochs=1),
        pb.UndeliveredSink(sink_id="b", first_epoch=4, epochs=6),
    ]
    end = pb.RunEnd(run=3, outcome=pb.RUN_FAILED, error=error, undelivered=owed)
    assert list(problem_lines(judge_run(RunStatus(3, end), last=None, superseded_by=None, now_us=NOW))) == [
        "run 3 failed: [SINK] the function failed",
        "  where: epoch 9",
        "  undelivered: a (epoch 9), b (6 epochs from 4 on); delivered first at the next start",
        "  what to do: mend it",
    ]


def test_the_newest_runs_are_listed_with_what_became_of_each_and_damage_hides_none() -> None:
    store = MemoryStore("memory://runs")
    log = CheckpointLog(store, "job")
    numbers = []
    for _ in range(4):
        run = Run.open(store, "job")
        run.commit(run.carry_over())
        numbers.append(run.number)
    put_end(store, pb.RunEnd(run=numbers[0], outcome=pb.RUN_FAILED))
    store.put(names.run_end(numbers[1]), b"damaged")
    put_heartbeat(store, beat(age_s=500, run=numbers[2]))
    put_heartbeat(store, beat(age_s=1, run=numbers[3]))
    head = log.head()
    assert head is not None
    found = run_reports(log, head, now_us=NOW, limit=10)
    assert [(one.run, one.state.value) for one in found] == [
        (numbers[3], "running"),
        (numbers[2], "vanished"),
        (numbers[1], "superseded"),
        (numbers[0], "failed"),
    ]
    assert found[1].what.endswith(f"run {numbers[3]} took over")
    assert [one.run for one in run_reports(log, head, now_us=NOW, limit=2)] == [numbers[3], numbers[2]]


def test_a_vanished_run_tells_which_sinks_lack_its_newest_epoch() -> None:
    store = MemoryStore("memory://runs")
    log = CheckpointLog(store, "job")
    head = record()
    head.sinks.extend([pb.SinkEntry(sink_id="has"), pb.SinkEntry(sink_id="lacks")])
    store.put(names.published(9, "has"), b"")
    put_heartbeat(store, beat(age_s=500))
    assert [str(one) for one in newest_run(log, head, now_us=NOW).undelivered] == ["lacks (epoch 9)"]


def test_the_text_of_an_error_is_bounded() -> None:
    assert len(shortened("x" * 1_000_000, 4_000)) < 4_100
