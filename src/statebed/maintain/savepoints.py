"""Savepoints: make, drop and list them; and stopping a job, which goes the same way."""

from dataclasses import dataclass

from statebed.checkpoint import CheckpointLog
from statebed.errors import FormatError, InputError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.maintain.tool_runs import DEFAULT_TIMEOUT_S, CommittedChange, Through, carry_out, is_over, whole_head


@dataclass(frozen=True)
class Savepoint:
    """An epoch that is kept under a name."""

    name: str
    epoch: int
    made_in: int
    """The record that introduced it."""
    finish_time_us: int | None
    """Of the pinned epoch; None: its copy cannot be read."""
    path: str
    problem: str = ""


def create_savepoint(
    log: CheckpointLog,
    name: str,
    *,
    epoch: int | None = None,
    through: Through,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> CommittedChange:
    """Keep an epoch (default: the newest) until the savepoint is dropped."""
    request = pb.Request(savepoint=pb.SavepointRequest(name=name, epoch=epoch))
    return carry_out(log, request, through=through, timeout_s=timeout_s)


def drop_savepoint(
    log: CheckpointLog, name: str, *, through: Through, timeout_s: float = DEFAULT_TIMEOUT_S
) -> CommittedChange:
    """Keep it no longer; its files leave with the next clean-up that may take them."""
    request = pb.Request(drop_savepoint=pb.DropSavepointRequest(name=name))
    return carry_out(log, request, through=through, timeout_s=timeout_s)


def list_savepoints(log: CheckpointLog) -> list[Savepoint]:
    """The savepoints that the newest record keeps alive, by epoch."""
    found = []
    for pin in sorted(whole_head(log).pins, key=lambda one: (one.epoch, one.savepoint)):
        made_in = names.epoch_of(pin.path) or 0
        try:
            finished, problem = int(log.savepoint(pin).finish_time_us), ""
        except FormatError as error:
            finished, problem = None, error.what
        found.append(Savepoint(pin.savepoint, int(pin.epoch), made_in, finished, pin.path, problem))
    return found


def stop_job(
    log: CheckpointLog, *, drain: bool, through: Through, timeout_s: float = DEFAULT_TIMEOUT_S
) -> CommittedChange:
    """End the live run with a record that says so; `drain` closes every window first. Nothing happens if it has ended.

    With a run of its own: a run that goes on finds itself superseded, and ends with exit code 86.
    """
    if drain and through is Through.OWN_RUN:
        raise InputError(
            "only the run that has the windows can close them",
            where=f"job {log.job_id}",
            fix="leave out --drain or --offline; a job that is not running is drained by query.stop(drain=True)",
        )
    head = whole_head(log)
    if through is Through.LIVE_RUN and is_over(log, head):
        if drain and head.status != pb.DRAINED:
            raise InputError(
                "the job is not running, and only a run that has the windows can close them",
                where=f"job {log.job_id}",
                fix="start the job and stop it with query.stop(drain=True)",
            )
        return CommittedChange(int(head.epoch), int(head.run), Through.NOBODY)
    return carry_out(log, pb.Request(stop=pb.StopRequest(drain=drain)), through=through, timeout_s=timeout_s)
