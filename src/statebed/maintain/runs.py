"""How a tool changes a job: by asking its live run, or with a run of its own, which fences every other.

Nobody but the live run appends records. So a tool puts a request before it, and hears of the record that carries the
effect. Where nobody answers, the job is not running, or is busy with one epoch for longer than the tool waits: only
people know. With a run of its own the tool need not know, because a run that still goes on finds itself superseded and
ends.
"""

import enum
from dataclasses import dataclass, replace

from statebed.checkpoint import CheckpointLog, DamagePolicy, Origin, Retention, RollbackPolicy, Run, RunOptions
from statebed.checkpoint.petitions import ask_live_run
from statebed.errors import CorruptRecordError, JobNotFoundError, RequestTimeoutError
from statebed.format import checkpoint_pb2 as pb
from statebed.protocol.requests import decide_request
from statebed.protocol.retention import DEFAULT_READER_GRACE_US

DEFAULT_TIMEOUT_S = 60.0
KEEP_EVERYTHING = Retention(epochs=1 << 40)
"""What is retained is for the job to say: a tool's own run drops nothing."""


class Through(enum.Enum):
    """Who appends the record that changes the job."""

    LIVE_RUN = "the live run"
    OWN_RUN = "a run of its own"


@dataclass(frozen=True)
class Changed:
    """The record that carries a change."""

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
) -> Run:
    """Fence every run of the job; nothing of the state changes by that."""
    retention = replace(KEEP_EVERYTHING, reader_grace_us=grace_us)
    options = RunOptions(origin=origin or Origin(), retention=retention, damage=damage, rollback=rollback)
    return Run.open(log.store, log.job_id, options=options, environment=log.environment)


def carry_out(
    log: CheckpointLog, request: pb.Request, *, through: Through, timeout_s: float = DEFAULT_TIMEOUT_S
) -> Changed:
    """Have a request take effect; a refusal is raised before anything is written where that can be known."""
    head = whole_head(log)
    decide_request(request, head=head)
    if through is Through.LIVE_RUN:
        answer = ask(log, request, head=head, timeout_s=timeout_s)
        return Changed(int(answer.epoch), int(answer.run), through)
    run = own_run(log)
    run.ask(request)
    record = run.commit(run.carry_over(pb.STOPPED))
    return Changed(int(record.epoch), int(record.run), through)


def ask(log: CheckpointLog, request: pb.Request, *, head: pb.CheckpointMetadata, timeout_s: float) -> pb.Answer:
    """Put a request before the live run, and say what silence means."""
    try:
        return ask_live_run(log.store, request, timeout_s=timeout_s, environment=log.environment)
    except RequestTimeoutError as error:
        age_s = max(0, log.environment.now_us() - head.finish_time_us) // 1_000_000
        raise RequestTimeoutError(
            f"no run of the job answered within {timeout_s:g} s; its newest record, {head.epoch}, is {age_s} s old. "
            "Nothing was changed",
            where=error.where,
            fix="if the job runs, it is busy with an epoch: wait longer (--timeout). If it does not: --offline, which "
            "opens a run of the tool's own and would end a run that still goes on",
        ) from error


def whole_head(log: CheckpointLog) -> pb.CheckpointMetadata:
    """The newest record of a job that has one."""
    recovery = log.recover()
    if recovery.damaged:
        raise CorruptRecordError(
            f"the newest record, {recovery.last_number}, cannot be read",
            where=f"job {log.job_id}, {log.store.url}",
            fix="see `statebed verify` and `statebed repair`",
        )
    if recovery.head is None:
        raise JobNotFoundError(
            f"the job {log.job_id!r} has no record yet", where=log.store.url, fix="start it first, then ask again"
        )
    return recovery.head
