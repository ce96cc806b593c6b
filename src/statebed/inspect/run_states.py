"""States of the runs of a job, as far as its folder shows them.

A process that ends records how (`runs/{run}/end.metadata`). One that is killed records nothing. Its run counts as
vanished if a later run exists, if its heartbeat is older than three intervals, or if it ran on this machine and the
process no longer exists. Comparing times involves two clocks, the writer's and the reader's, and is for display only:
the log decides which run may write.
"""

import enum
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from statebed.checkpoint.log import CheckpointLog
from statebed.checkpoint.process_identity import has_ended
from statebed.checkpoint.run_status import RunStatus, known_runs, read_status, undelivered_sinks
from statebed.errors import FormatError, InvalidNameError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.inspect.records import STATUSES
from statebed.inspect.sizes import READS_AT_ONCE

SILENT_AFTER = 3
"""A run has vanished when its heartbeat is older than this many of its intervals."""


class RunState(enum.Enum):
    """State of a run, or how it ended."""

    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    DRAINED = "drained"
    FAILED = "failed"
    FENCED = "fenced"
    EXITED = "exited"
    VANISHED = "vanished"
    SUPERSEDED = "superseded"
    """A later run exists, and this one recorded no end; or its process has not noticed yet."""
    UNKNOWN = "unknown"
    """The newest run, of a program without heartbeats: a tool, or an older statebed."""


PROBLEMS = frozenset({RunState.FAILED, RunState.FENCED, RunState.EXITED, RunState.VANISHED})
"""States that need attention."""
_OUTCOMES = {
    pb.RUN_FINISHED: RunState.FINISHED,
    pb.RUN_STOPPED: RunState.STOPPED,
    pb.RUN_DRAINED: RunState.DRAINED,
    pb.RUN_FAILED: RunState.FAILED,
    pb.RUN_FENCED: RunState.FENCED,
    pb.RUN_EXITED: RunState.EXITED,
}
_STATUSES = {pb.STOPPED: RunState.STOPPED, pb.DRAINED: RunState.DRAINED}


@dataclass(frozen=True)
class UndeliveredSink:
    """A sink that lacks committed epochs."""

    sink: str
    first_epoch: int
    epochs: int

    def __str__(self) -> str:
        epochs = f"epoch {self.first_epoch}" if self.epochs == 1 else f"{self.epochs} epochs from {self.first_epoch} on"
        return f"{self.sink} ({epochs})"


@dataclass(frozen=True)
class RunReport:
    """One run: its state and, if it did not end cleanly, the cause and the fix."""

    run: int
    state: RunState
    start_time_us: int | None = None
    end_time_us: int | None = None
    """Time of its end or its last heartbeat."""
    epoch: int | None = None
    """Newest record that it committed, as last reported."""
    code: str = ""
    kind: str = ""
    """Class of the exception."""
    what: str = ""
    where: str = ""
    fix: str = ""
    traceback: str = ""
    undelivered: tuple[UndeliveredSink, ...] = ()
    host: str = ""
    process_id: int = 0
    has_ended: bool = False
    """Whether its process is known to have ended, although it recorded no end."""

    @property
    def is_problem(self) -> bool:
        return self.state in PROBLEMS


def judge_run(
    status: RunStatus,
    *,
    last: pb.CheckpointMetadata | None,
    superseded_by: int | None,
    now_us: int,
    has_ended: bool = False,
) -> RunReport:
    """Determine the state of a run from its status; `last` is its last record, if retained.

    `has_ended` tells that its process is known to have ended.
    """
    report = _told(status)
    if status.end is not None:
        return _ended(report, status.end)
    stopped = _STATUSES.get(last.status) if last is not None else None
    if stopped is not None:
        return replace(report, state=stopped)
    is_silent = _silence_us(status.heartbeat, now_us) is not None
    if status.heartbeat is None:
        return replace(report, state=RunState.UNKNOWN if superseded_by is None else RunState.SUPERSEDED)
    if not is_silent and not has_ended:
        return replace(report, state=RunState.RUNNING if superseded_by is None else RunState.SUPERSEDED)
    return _vanished(replace(report, has_ended=has_ended), superseded_by)


def _told(status: RunStatus) -> RunReport:
    sign = status.heartbeat
    if sign is None:
        return RunReport(status.run, RunState.UNKNOWN)
    return RunReport(
        status.run,
        RunState.RUNNING,
        start_time_us=sign.start_time_us,
        end_time_us=sign.time_us,
        epoch=sign.epoch,
        host=sign.host,
        process_id=sign.process_id,
    )


def _ended(report: RunReport, end: pb.RunEnd) -> RunReport:
    error = end.error
    return replace(
        report,
        state=_OUTCOMES.get(end.outcome, RunState.UNKNOWN),
        start_time_us=end.start_time_us,
        end_time_us=end.time_us,
        epoch=end.epoch,
        code=error.code,
        kind=error.kind,
        what=error.what,
        where=error.where,
        fix=error.fix,
        traceback=error.traceback,
        undelivered=_undelivered(end.undelivered),
    )


def _silence_us(sign: pb.RunHeartbeat | None, now_us: int) -> int | None:
    """Return the time since the last heartbeat if it exceeds the limit, else None."""
    if sign is None:
        return None
    silence = now_us - sign.time_us
    return silence if silence > SILENT_AFTER * sign.every_us else None


def _vanished(report: RunReport, superseded_by: int | None) -> RunReport:
    place = f"process {report.process_id} on host {report.host}"
    took_over = f"; run {superseded_by} took over" if superseded_by else ""
    end = "has ended, but" if report.has_ended else "stopped sending heartbeats and"
    return replace(
        report,
        state=RunState.VANISHED,
        what=f"{place} {end} recorded no end{took_over}",
        fix="nothing is lost. Find out what ended the process: was it killed (out of memory?), did the host go down, "
        "can it still reach the store?"
        + ("" if superseded_by else f" Then start the job again: it continues after epoch {report.epoch}"),
    )


def _undelivered(sinks: Iterable[pb.UndeliveredSink]) -> tuple[UndeliveredSink, ...]:
    return tuple(UndeliveredSink(sink.sink_id, sink.first_epoch, sink.epochs) for sink in sinks)


def state_of_job(head: pb.CheckpointMetadata, report: RunReport | None) -> str:
    """Return the status of a job in one word: the state of its newest run, or the status of its newest record if the
    run reports none.
    """
    if report is None or report.state in {RunState.UNKNOWN, RunState.SUPERSEDED}:
        return STATUSES.get(head.status, "unknown")
    state: str = report.state.value
    return state


# ---- reading -----------------------------------------------------------------------------------------------------


def newest_run(
    log: CheckpointLog, head: pb.CheckpointMetadata, *, now_us: int, status: RunStatus | None = None
) -> RunReport:
    """Report on the run that wrote the newest record; pass its `status` if it is already read."""
    status = run_status(log, head.run) if status is None else status
    sign = status.heartbeat
    gone = sign is not None and has_ended(sign.process_id, sign.process_identity)
    report = judge_run(_up_to_date(status, head), last=head, superseded_by=None, now_us=now_us, has_ended=gone)
    if report.state is RunState.VANISHED:
        waiting = [entry.sink_id for entry in head.sinks if not is_published(log, head.epoch, entry.sink_id)]
        report = replace(report, undelivered=_undelivered(undelivered_sinks([(head.epoch, waiting)])))
    return report


def _up_to_date(status: RunStatus, head: pb.CheckpointMetadata) -> RunStatus:
    """Return the status with the epoch of the newest record, which may be newer than the heartbeat."""
    if status.heartbeat is None:
        return status
    sign = pb.RunHeartbeat()
    sign.CopyFrom(status.heartbeat)
    sign.epoch = head.epoch
    return replace(status, heartbeat=sign)


def run_reports(
    log: CheckpointLog,
    head: pb.CheckpointMetadata,
    *,
    now_us: int,
    limit: int,
    lasts: dict[int, pb.CheckpointMetadata] | None = None,
) -> list[RunReport]:
    """Report on the newest runs that recorded a status, newest first; `lasts` are last records of runs, if known."""
    runs = [run for run in known_runs(log.store) if run <= head.run]
    later = dict(zip(runs, [*runs[1:], head.run if not runs or runs[-1] != head.run else None], strict=False))
    wanted = runs[-limit:][::-1]
    with ThreadPoolExecutor(READS_AT_ONCE, thread_name_prefix="statebed-runs") as pool:
        statuses = list(pool.map(lambda run: run_status(log, run), wanted))
    known = {head.run: head} | (lasts or {})
    return [
        newest_run(log, head, now_us=now_us, status=status)
        if status.run == head.run
        else judge_run(status, last=known.get(status.run), superseded_by=later.get(status.run), now_us=now_us)
        for status in statuses
    ]


def is_published(log: CheckpointLog, epoch: int, sink_id: str) -> bool:
    """Return whether a marker says that the epoch is published to the sink."""
    try:
        return log.store.head(names.published(epoch, sink_id)) is not None
    except InvalidNameError:
        return False  # no sink can have such a name


def run_status(log: CheckpointLog, run: int) -> RunStatus:
    """Read the status of a run. Damage is reported by `statebed verify`; here it counts as no status."""
    try:
        return read_status(log.store, run)
    except FormatError:
        return RunStatus(run)


def problem_lines(report: RunReport) -> Sequence[str]:
    """Describe a run that did not end cleanly: what, where, undelivered sinks, what to do."""
    code = f"[{report.code}] " if report.code else f"{report.kind}: " if report.kind else ""
    lines = [f"run {report.run} {report.state.value}: {code}{report.what}"]
    if report.where:
        lines.append(f"  where: {report.where}")
    if report.undelivered:
        lines.append(f"  undelivered: {', '.join(map(str, report.undelivered))}; delivered first at the next start")
    if report.fix:
        lines.append(f"  what to do: {report.fix}")
    return lines
