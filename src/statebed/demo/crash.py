"""The crash demo: kills the job with SIGKILL in mid-epoch several times, and checks that the result is still right.

The job runs in a child process. This process watches the state folder and kills at one of two points: while an epoch is
being written (its files exist, its record does not), or after its record and before its output is published. What
counts is the state on disk once all processes are dead: a kill outside an epoch is not counted, and is repeated.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from statebed.checkpoint.log import CheckpointLog
from statebed.demo.child import run_job
from statebed.demo.comparison import Comparison, compare
from statebed.demo.job import SINK, DemoFolder
from statebed.errors import DemoError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.protocol.records import data_epoch_of

_POLL_SECONDS = 0.004
_FILES_PER_RUN = 4


class KillPoint(enum.Enum):
    """Point of an epoch at which the job was killed, according to the files on disk."""

    WRITING = "files written, no record"
    COMMITTED = "record committed, output not published"
    BETWEEN = "between two epochs"


@dataclass(frozen=True)
class Kill:
    """One kill, according to the files on disk afterwards."""

    epoch: int
    moment: KillPoint
    processes: int
    last_committed: int
    resumed_from: int
    """Epoch from which the next run resumed."""

    @property
    def epochs_lost(self) -> int:
        return max(self.last_committed - self.resumed_from, 0)


@dataclass(frozen=True)
class CrashOutcome:
    """All kills, and the comparison after the last run."""

    kills: tuple[Kill, ...]
    misses: int
    """Number of kills that hit the job outside an epoch."""
    comparison: Comparison

    @property
    def right(self) -> bool:
        return self.comparison.equal and not any(kill.epochs_lost for kill in self.kills)


@dataclass(frozen=True)
class _Death:
    epoch: int
    moment: KillPoint
    processes: int
    last_committed: int


@dataclass(frozen=True)
class _Run:
    base: int
    death: _Death | None


def run_crash_demo(
    folder: DemoFolder, *, kills: int, events_per_file: int, tell: Callable[[str], None]
) -> CrashOutcome:
    """Kill the job `kills` times inside an epoch, let it finish, and compare the result."""
    events = folder.events(events_per_file=events_per_file)
    runs: list[_Run] = []
    moments = (KillPoint.WRITING, KillPoint.COMMITTED)
    for _ in range(2 * kills + 4):
        if (hits := _hits(runs)) >= kills:
            break
        moment = moments[hits % len(moments)]
        tell(f"{sum(1 for _ in events.append(_FILES_PER_RUN))} new event files; starting the job")
        runs.append(_run(folder, kill_at=moment))
        tell(_words(runs[-1]))
    if _hits(runs) < kills:
        raise DemoError(
            f"only {_hits(runs)} of {kills} kills hit the job inside an epoch",
            where=str(folder.root),
            fix="the machine may be too busy to watch the folder; run the demo again",
        )
    tell("starting the job once more, to its end")
    runs.append(_run(folder, kill_at=None))
    deaths = [(run.death, after.base) for run, after in pairwise(runs) if run.death]
    return CrashOutcome(
        kills=tuple(
            Kill(death.epoch, death.moment, death.processes, death.last_committed, resumed_from=base)
            for death, base in deaths
            if death.moment is not KillPoint.BETWEEN
        ),
        misses=sum(death.moment is KillPoint.BETWEEN for death, _ in deaths),
        comparison=compare(folder),
    )


def _run(folder: DemoFolder, *, kill_at: KillPoint | None) -> _Run:
    """Start the job, and wait until it ends or reaches the kill point."""
    log = folder.log()
    before = _newest(log)

    def kill_point_reached(log: CheckpointLog) -> bool:
        # Let the run_start and one epoch pass, so that every run makes progress. Do only one lookup until then, to
        # leave the cores to the job.
        return kill_at is not None and log.exists(before + 2) and _moment(log) is kill_at

    ended = run_job(folder, kill_when=kill_point_reached, poll_seconds=_POLL_SECONDS)
    return _Run(base=_base_of_run_after(log, before), death=_death(log, ended.processes) if ended.killed else None)


def _death(log: CheckpointLog, processes: int) -> _Death:
    head = log.head()
    return _Death(
        epoch=log.numbers()[-1],
        moment=_moment(log),
        processes=processes,
        last_committed=data_epoch_of(head) if head else 0,
    )


def _moment(log: CheckpointLog) -> KillPoint:
    """Return the point that the newest epoch has reached, according to the folder."""
    number = log.numbers()[-1]
    record = log.observe(number).record
    if record is None:
        return KillPoint.WRITING
    if record.kind == pb.EPOCH and log.store.head(names.published(number, SINK)) is None:
        return KillPoint.COMMITTED
    return KillPoint.BETWEEN


def _newest(log: CheckpointLog) -> int:
    """Return the newest number that has a record, or 0."""
    return next((number for number in reversed(log.numbers()) if log.exists(number)), 0)


def _base_of_run_after(log: CheckpointLog, number: int) -> int:
    """Return the base of the run that started after record `number`."""
    started = (record for record in log.records() if record.kind == pb.RUN_START and record.epoch > number)
    first = next(started, None)
    if first is None:
        raise DemoError("the job ended before its run started", where=log.store.url)
    return first.base


def _hits(runs: list[_Run]) -> int:
    return sum(run.death is not None and run.death.moment is not KillPoint.BETWEEN for run in runs)


def _words(run: _Run) -> str:
    if run.death is None:
        return "the job ended before it reached the kill point; trying again"
    where = f"epoch {run.death.epoch} ({run.death.moment.value})"
    return f"SIGKILL to all {run.death.processes} processes of the job, in {where}"
