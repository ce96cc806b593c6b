"""Changes of a job by tools: through a request to the live run, or in a separate run, which fences all others.

Only the live run appends records. A tool therefore sends it a request, and the answer names the record with the effect.
If the run has recorded its end, the tool opens a separate run at once, unless another one has started in the meantime.
If the run has not ended and does not answer, it was killed, or it processes one epoch for longer than the tool waits.
Only the user can tell which. A separate run is safe in both cases: a run that is still live is superseded and ends.
"""

import contextlib
import datetime as dt
import enum
from dataclasses import dataclass, replace

from statebed.checkpoint import CheckpointLog, DamagePolicy, Origin, Retention, RollbackPolicy, Run, RunOptions
from statebed.checkpoint.requests import send_request
from statebed.checkpoint.run_status import put_end
from statebed.errors import CorruptRecordError, FencedError, JobNotFoundError, OpenContentionError, RequestTimeoutError
from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.run_states import RunState, newest_run
from statebed.protocol.requests import decide_request
from statebed.protocol.retention import DEFAULT_READER_GRACE_US

DEFAULT_TIMEOUT_S = 60.0
SILENT_TIMEOUT_S = 5.0
"""Maximum wait for a run whose process sends no heartbeats."""
_OVER = frozenset(
    {RunState.FINISHED, RunState.STOPPED, RunState.DRAINED, RunState.FAILED, RunState.FENCED, RunState.EXITED}
)
KEEP_EVERYTHING = Retention(epochs=1 << 40)
"""Retention of a tool's run: it drops nothing, because the job decides what is retained."""


class Through(enum.Enum):
    """Run that appends the record of a change."""

    LIVE_RUN = "the live run"
    OWN_RUN = "a separate run"
    IDLE_JOB = "a separate run: the job is not running"
    NO_RUN = "nothing to do: the job is not running"


@dataclass(frozen=True)
class CommittedChange:
    """Record that contains a change."""

    epoch: int
    run: int
    through: Through


def own_run(
    log: CheckpointLog,
    *,
    origin: Origin | None = None,
    damage: DamagePolicy = DamagePolicy.REFUSE,
    rollback: RollbackPolicy = RollbackPolicy.REFUSE,
    grace_us: int = DEFAULT_READER_GRACE_US,
    only_after: int | None = None,
) -> Run:
    """Open a separate run, which fences every other run of the job and leaves the state unchanged.

    With `only_after`, do so only while that record is the newest one.
    """
    retention = replace(KEEP_EVERYTHING, reader_grace=dt.timedelta(microseconds=grace_us))
    options = RunOptions(
        origin=origin or Origin(), retention=retention, damage=damage, rollback=rollback, only_after=only_after
    )
    return Run.open(log.store, log.job_id, options=options, environment=log.environment)


def carry_out(
    log: CheckpointLog, request: pb.Request, *, through: Through, timeout_s: float = DEFAULT_TIMEOUT_S
) -> CommittedChange:
    """Carry out a request. A request that will be refused is rejected before anything is written, if that is known.

    With `Through.LIVE_RUN`, a job that is not running is changed in a separate run.
    """
    head = whole_head(log)
    decide_request(request, head=head)
    if through is not Through.LIVE_RUN:
        return _with(own_run(log), request, through)
    if is_over(log, head):
        with contextlib.suppress(
            OpenContentionError, FencedError
        ):  # a run has started in the meantime and gets the request
            return _with(own_run(log, only_after=head.epoch), request, Through.IDLE_JOB)
    answer = _send(log, request, head=whole_head(log), timeout_s=timeout_s)
    return CommittedChange(int(answer.epoch), int(answer.run), through)


def is_over(log: CheckpointLog, head: pb.CheckpointMetadata) -> bool:
    """Return whether the run of the newest record has recorded its end, or its process on this machine has ended."""
    report = newest_run(log, head, now_us=log.environment.now_us())
    return report.state in _OVER or report.has_ended


def end_run(run: Run) -> None:
    """Record the end of a tool's run, so that the next tool does not wait for it."""
    end = pb.RunEnd(
        job_id=run.job_id,
        run=run.number,
        outcome=pb.RUN_STOPPED,
        start_time_us=run.head.start_time_us,
        time_us=run.environment.now_us(),
        epoch=run.head.epoch,
        written_by=run.environment.written_by,
    )
    put_end(run.store, end)


def _with(run: Run, request: pb.Request, through: Through) -> CommittedChange:
    run.add_request(request)
    record = run.commit(run.carry_over(pb.STOPPED))
    return CommittedChange(int(record.epoch), int(record.run), through)


def _send(log: CheckpointLog, request: pb.Request, *, head: pb.CheckpointMetadata, timeout_s: float) -> pb.Answer:
    """Send a request to the live run. On a timeout, explain the possible causes."""
    report = newest_run(log, head, now_us=log.environment.now_us())
    is_silent = report.state is RunState.VANISHED
    waited_s = min(timeout_s, SILENT_TIMEOUT_S) if is_silent else timeout_s
    try:
        return send_request(log.store, request, timeout_s=waited_s, environment=log.environment)
    except RequestTimeoutError as error:
        age_s = max(0, log.environment.now_us() - head.finish_time_us) // 1_000_000
        why = f"run {report.run} vanished: {report.what}" if is_silent else "it may be busy with an epoch"
        fix = "if the job is busy with an epoch, wait longer (--timeout). If it is not running, pass --offline, which "
        if is_silent:
            fix = "pass --offline, which "
        raise RequestTimeoutError(
            f"no run of the job answered within {waited_s:g} s; its newest record, {head.epoch}, is {age_s} s old "
            f"({why}). Nothing was changed",
            where=error.where,
            fix=f"{fix}opens a separate run and ends one that is still live",
        ) from error


def whole_head(log: CheckpointLog) -> pb.CheckpointMetadata:
    """Return the newest record. Raise if the job has none or it cannot be read."""
    recovery = log.recover()
    if recovery.damaged:
        raise CorruptRecordError(
            f"the newest record, {recovery.last_number}, cannot be read",
            where=f"job {log.job_id}, {log.store.url}",
            fix="see `statebed verify` and `statebed repair`",
        )
    if recovery.head is None:
        raise JobNotFoundError(
            f"the job {log.job_id!r} has no record yet", where=log.store.url, fix="start the job first, then try again"
        )
    return recovery.head
