"""Tail of the log of a running job, and its throughput, lag and state."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from statebed.checkpoint.log import CheckpointLog
from statebed.errors import EpochNotRetainedError
from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.figures import CompactionWork, HostMemory, TierSizes, figures_of, phases_of
from statebed.inspect.operator_names import OperatorNames
from statebed.inspect.records import input_watermark, newest, readable, slowest_watermark
from statebed.inspect.run_states import RunReport, newest_run, run_status, state_of_job
from statebed.inspect.sources import SourceState, sources_of
from statebed.protocol.records import data_epoch_of


class LogTail:
    """Follows the newest records of a log: it is listed once, then only the next number is looked up."""

    def __init__(self, log: CheckpointLog, *, keep: int) -> None:
        self._log = log
        self._records: deque[pb.CheckpointMetadata] = deque(maxlen=keep)

    def poll(self) -> Sequence[pb.CheckpointMetadata]:
        """Return the current newest records in ascending order; empty for a job that never committed."""
        if not self._records or not self._log.is_current(self._records[-1]):
            self._begin()
        while self._records and (following := self._next(self._records[-1].epoch + 1)):
            self._records.append(following)
        return list(self._records)

    def run(self, *, now_us: int) -> RunReport | None:
        """Return the state of the run of the newest record, or None before the first record."""
        return newest_run(self._log, self._records[-1], now_us=now_us) if self._records else None

    def heartbeat(self) -> pb.RunHeartbeat | None:
        """Return the newest heartbeat of the run of the newest record, or None if it has none."""
        return run_status(self._log, self._records[-1].run).heartbeat if self._records else None

    def _begin(self) -> None:
        """Read the tail from scratch; also called if the newest record has disappeared because the job was removed or
        recreated.
        """
        self._records.clear()
        head = newest(self._log)
        if head is not None:
            first = max(head.min_epoch, head.epoch - (self._records.maxlen or 1) + 1)
            older = (readable(self._log, number) for number in range(first, head.epoch))
            self._records.extend([*(record for record in older if record), head])

    def _next(self, epoch: int) -> pb.CheckpointMetadata | None:
        try:
            return self._log.read(epoch)
        except EpochNotRetainedError:
            return None


@dataclass(frozen=True)
class OperatorPace:
    """One operator, over the observed epochs."""

    operator: str
    subtasks: int
    rows_in_per_second: float | None
    rows_out_per_second: float | None
    rows_late: int
    watermark_us: int | None
    busy_us: int | None
    """Busy time of its slowest subtask in the newest epoch."""


@dataclass(frozen=True)
class JobPace:
    """Status and throughput of a job; rates are over the observed epochs of its newest run."""

    job: str
    epoch: int
    kind: str
    status: str
    run: int
    lineage: str
    finish_time_us: int
    idle_us: int
    """Time since the newest record."""
    epochs: int
    """Number of epochs over which rates are computed."""
    epochs_per_second: float | None
    rows_in_per_second: float | None
    rows_out_per_second: float | None
    rows_late: int
    duration_us: int | None
    """Duration of the newest epoch."""
    watermark_us: int | None
    lag_us: int | None
    """Lag of the slowest watermark behind the clock when the newest epoch was processed."""
    event_time_lag_us: int | None
    """Lag of the slowest watermark behind the newest event of any source."""
    phases_us: dict[str, int]
    """Mean duration of each phase over the epochs that report it."""
    operators: tuple[OperatorPace, ...]
    tables: tuple[TierSizes, ...]
    hosts: tuple[HostMemory, ...]
    compaction: CompactionWork | None
    report: RunReport | None = None
    """State of the newest run."""
    operator_names: dict[str, str] = field(default_factory=dict)
    """Display names of operators by id."""
    sources: tuple[SourceState, ...] = ()


def pace_of(
    records: Sequence[pb.CheckpointMetadata],
    *,
    now_us: int,
    report: RunReport | None = None,
    heartbeat: pb.RunHeartbeat | None = None,
) -> JobPace:
    """Compute the status and throughput of a job from its newest records, of which there must be at least one. `report`
    and `heartbeat` are those of its newest run.
    """
    head = records[-1]
    epochs = [record for record in records if record.run == head.run and record.kind == pb.EPOCH]
    last = epochs[-1] if epochs else None
    seconds = _seconds(epochs)
    watermark = slowest_watermark(head)
    figures = figures_of(last) if last else None
    return JobPace(
        job=head.job_id,
        epoch=data_epoch_of(head),
        kind="epoch" if last else "run_start",
        status=state_of_job(head, report),
        run=head.run,
        lineage=head.lineage,
        finish_time_us=head.finish_time_us,
        idle_us=max(0, now_us - head.finish_time_us),
        epochs=len(epochs),
        epochs_per_second=_rate(len(epochs), seconds),
        rows_in_per_second=_rate(sum(o.rows_in for r in epochs for o in r.operators), seconds),
        rows_out_per_second=_rate(sum(o.rows_out for r in epochs for o in r.operators), seconds),
        rows_late=sum(operator.rows_late for record in epochs for operator in record.operators),
        duration_us=last.finish_time_us - last.start_time_us if last else None,
        watermark_us=watermark,
        lag_us=_behind(watermark, head.epoch_time_us or None),
        event_time_lag_us=_behind(watermark, _newest_event(head)),
        phases_us=_mean_phases(epochs),
        operators=tuple(_pace(entry, epochs, seconds) for entry in head.operators),
        tables=figures.tables if figures else (),
        hosts=figures.hosts if figures else (),
        compaction=figures.compaction if figures else None,
        report=report,
        sources=tuple(sources_of(head, heartbeat)),
        operator_names=dict(OperatorNames.of(head).by_id),
    )


def _pace(entry: pb.OperatorEntry, epochs: Sequence[pb.CheckpointMetadata], seconds: float) -> OperatorPace:
    own = [operator for record in epochs for operator in record.operators if operator.operator_id == entry.operator_id]
    busy = {operator.operator_id: operator.busy_us for operator in epochs[-1].figures.operators} if epochs else {}
    return OperatorPace(
        operator=entry.operator_id,
        subtasks=entry.parallelism,
        rows_in_per_second=_rate(sum(operator_entry.rows_in for operator_entry in own), seconds),
        rows_out_per_second=_rate(sum(operator_entry.rows_out for operator_entry in own), seconds),
        rows_late=sum(operator_entry.rows_late for operator_entry in own),
        watermark_us=input_watermark(entry),
        busy_us=busy.get(entry.operator_id),
    )


def _seconds(epochs: Sequence[pb.CheckpointMetadata]) -> float:
    """Return the time from the start of the first epoch to the end of the last, including pauses."""
    if not epochs:
        return 0.0
    return (epochs[-1].finish_time_us - epochs[0].start_time_us) / 1e6


def _rate(count: int, seconds: float) -> float | None:
    return count / seconds if seconds > 0 else None


def _behind(watermark_us: int | None, time_us: int | None) -> int | None:
    return None if watermark_us is None or time_us is None else time_us - watermark_us


def _newest_event(record: pb.CheckpointMetadata) -> int | None:
    times = [source.max_event_time_us for source in record.sources if source.HasField("max_event_time_us")]
    return max(times, default=None)


def _mean_phases(epochs: Sequence[pb.CheckpointMetadata]) -> dict[str, int]:
    following = {record.epoch - 1: record for record in epochs}
    measured = [phases_of(record, following.get(record.epoch)) for record in epochs]
    names = list(dict.fromkeys(name for phases in measured for name in phases))
    return {
        name: sum(phases.get(name, 0) for phases in measured) // sum(name in phases for phases in measured)
        for name in names
    }
