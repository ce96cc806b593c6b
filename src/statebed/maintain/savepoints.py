"""Creates, drops and lists savepoints, and stops a job, which uses the same requests."""

from dataclasses import dataclass

from statebed.checkpoint import CheckpointLog
from statebed.errors import FormatError, InputError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.maintain.tool_runs import DEFAULT_TIMEOUT_S, CommittedChange, Through, carry_out, is_over, whole_head


@dataclass(frozen=True)
class Savepoint:
    """An epoch that is retained under a name."""

    name: str
    epoch: int
    made_in: int
    """Record that created the savepoint."""
    finish_time_us: int | None
    """Finish time of the pinned epoch, or None if its copy cannot be read."""
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
    """Retain an epoch (default: the newest) until the savepoint is dropped."""
    request = pb.Request(savepoint=pb.SavepointRequest(name=name, epoch=epoch))
    return carry_out(log, request, through=through, timeout_s=timeout_s)


def drop_savepoint(
    log: CheckpointLog, name: str, *, through: Through, timeout_s: float = DEFAULT_TIMEOUT_S
) -> CommittedChange:
    """Drop a savepoint; a later clean-up removes the files that only it needed."""
    request = pb.Request(drop_savepoint=pb.DropSavepointRequest(name=name))
    return carry_out(log, request, through=through, timeout_s=timeout_s)


def list_savepoints(log: CheckpointLog) -> list[Savepoint]:
    """Return the savepoints of the newest record, sorted by epoch."""
    savepoints = []
    for pin in sorted(whole_head(log).pins, key=lambda savepoint: (savepoint.epoch, savepoint.savepoint)):
        made_in = names.epoch_of(pin.path) or 0
        try:
            finished, problem = int(log.savepoint(pin).finish_time_us), ""
        except FormatError as error:
            finished, problem = None, error.what
        savepoints.append(Savepoint(pin.savepoint, int(pin.epoch), made_in, finished, pin.path, problem))
    return savepoints


def stop_job(
    log: CheckpointLog, *, drain: bool, through: Through, timeout_s: float = DEFAULT_TIMEOUT_S
) -> CommittedChange:
    """End the live run with a final record; `drain` closes all windows first. Do nothing if it has already ended.

    With a separate run, a live run is superseded and ends with exit code 86.
    """
    if drain and through is Through.OWN_RUN:
        raise InputError(
            "a drain needs the live run: only it can close its windows",
            where=f"job {log.job_id}",
            fix="leave out --drain or --offline; to drain a job that is not running, start it and call "
            "query.stop(drain=True)",
        )
    head = whole_head(log)
    if through is Through.LIVE_RUN and is_over(log, head):
        if drain and head.status != pb.DRAINED:
            raise InputError(
                "the job is not running, and only a live run can close its windows",
                where=f"job {log.job_id}",
                fix="start the job and stop it with query.stop(drain=True)",
            )
        return CommittedChange(int(head.epoch), int(head.run), Through.NO_RUN)
    return carry_out(log, pb.Request(stop=pb.StopRequest(drain=drain)), through=through, timeout_s=timeout_s)
