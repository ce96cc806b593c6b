"""Compaction on Spark: rounds of a separate job alongside the epochs, over the files of committed epochs.

After an epoch, its subtasks report how many bytes of their files are due for compaction. If there are enough, a round
compacts some of them in a separate Spark job, on one thread of the driver, while epochs continue. Its edits are passed
to the next epoch, which applies those that are still valid and commits them with its record. A round that fails only
loses its work: the failure is logged and counted, and the next round starts after a pause. An epoch waits for a round
only if files accumulate faster than rounds compact them.

All methods are for the controller, which serialises its calls; nothing else starts rounds or clean-ups.
"""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.logs import IdLogger, id_logger
from statebed.operators import Operator
from statebed.spark.compaction.round_job import SLOTS_SHARE, Round, Rounds, SparkRounds
from statebed.spark.plan.job_plan import JobPlan
from statebed.subtasks import CompactedSubtask, CompactionTask, SubtaskReport

_logger = id_logger(__name__)
_LONGEST_PAUSE = 64


@dataclass(frozen=True)
class CompactionOptions:
    """Limits that control when rounds start, how much they do, and when epochs wait for them."""

    every_epochs: int = 32
    """Number of epochs between rounds, if anything is due."""
    min_bytes: int = 16 << 20
    """Due bytes at which the first round of a query starts at once, because the query may end soon."""
    subtask_bytes: int = 256 << 20
    """Approximate bytes of files that a round compacts per subtask; a single larger compaction runs alone."""
    round_bytes: int = 1 << 30
    """Approximate bytes of files that a round compacts over all subtasks."""
    max_debt_bytes: int = 4 << 30
    max_epochs: int = 8
    """Above `max_debt_bytes` due bytes, a round starts at once. An epoch waits for a running round if the debt is
    above that limit, or if the round has run for more than `max_epochs` epochs.
    """
    wait_seconds: float = 60.0
    """Maximum time that an epoch waits."""
    round_seconds: float = 600.0
    """Time after which a round is cancelled."""


@dataclass(frozen=True)
class CompactionCounts:
    """Work of rounds since the start of the query."""

    rounds: int = 0
    failures: int = 0
    """Number of rounds, or subtasks of rounds, that failed."""
    edits_handed: int = 0
    edits_applied: int = 0
    """Number of edits applied by committed epochs; the others had lost an input."""
    read_bytes: int = 0
    written_bytes: int = 0
    waits: int = 0
    """Number of epochs that waited for a round."""


@dataclass(frozen=True)
class EpochEdits:
    """Edits and round in progress, passed to the subtasks of the next epoch by operator."""

    edits: Mapping[str, tuple[bytes, ...]] = field(default_factory=dict)
    compacting_epoch: Mapping[str, int] = field(default_factory=dict)
    """Base of the round in progress, for its operators."""


@dataclass(frozen=True)
class FilesInFlight(Collection[str]):
    """Outputs that a record may still refer to: those of pending edits and, during a round, everything that it may have
    written.
    """

    paths: frozenset[str] = frozenset()
    writing_run: int | None = None

    def __contains__(self, path: object) -> bool:
        if path in self.paths:
            return True
        return self.writing_run is not None and names.run_of_compaction(str(path)) == self.writing_run

    def __iter__(self) -> Iterator[str]:
        return iter(self.paths)

    def __len__(self) -> int:
        return len(self.paths)


def chosen(
    reports: Sequence[SubtaskReport],
    *,
    compacted_in: Mapping[tuple[str, int], int],
    max_bytes: int,
    subtask_bytes: int,
) -> list[SubtaskReport]:
    """Choose the subtasks to compact in a round: the least recently compacted ones first, then those with most due
    bytes.

    A round compacts about `subtask_bytes` of a subtask, however much of it is due.
    """
    due = sorted(
        (report for report in reports if report.due_bytes),
        key=lambda report_: (compacted_in.get(_place(report_), 0), -report_.due_bytes, _place(report_)),
    )
    taken: list[SubtaskReport] = []
    total = 0
    for report in due:
        total += min(report.due_bytes, subtask_bytes)
        if taken and total > max_bytes:
            break
        taken.append(report)
    return taken


class CompactionRounds:
    """Compaction rounds of one query."""

    def __init__(
        self,
        rounds: Rounds,
        *,
        run: int,
        operators: Mapping[str, Operator],
        options: CompactionOptions | None = None,
        logger: IdLogger = _logger,
    ) -> None:
        self._rounds = rounds
        self._run = run
        self._operators = operators
        self._options = options or CompactionOptions()
        self._round: Round | None = None
        self._round_epoch = 0
        self._round_bytes = 0
        self._round_operators: frozenset[str] = frozenset()
        self._waiting: tuple[CompactedSubtask, ...] = ()
        self._handed = False
        self._compacted_in: dict[tuple[str, int], int] = {}
        self._debt_bytes = 0
        self._last_epoch = 0
        self._pause_until = 0
        self._failed_in_a_row = 0
        self._start_soon = False
        self._logger = logger
        self.counts = CompactionCounts()

    @property
    def in_flight(self) -> FilesInFlight:
        """Files that clean-up must keep."""
        paths = frozenset(path for subtask in self._waiting for path in subtask.outputs)
        return FilesInFlight(paths, self._run if self.under_way else None)

    def before_epoch(self, epoch: int) -> EpochEdits:
        """Return the edits for the subtasks of this epoch; first wait for a round that lags too far behind."""
        options = self._options
        behind = epoch - self._round_epoch > options.max_epochs or self._debt_bytes > options.max_debt_bytes
        if self._round is not None and behind and not self._round.done:
            logger = self._logger.about(epoch=epoch)
            logger.info("epoch %d waits for the compaction that started after epoch %d", epoch, self._round_epoch)
            self._count(waits=1)
            self._round.wait(options.wait_seconds)
        self._take_result(epoch)
        self._handed = True
        edits: dict[str, tuple[bytes, ...]] = {}
        for result in self._waiting:
            edits[result.operator_id] = (*edits.get(result.operator_id, ()), *result.edits)
        compacting = dict.fromkeys(self._round_operators, self._round_epoch) if self._round is not None else {}
        return EpochEdits(edits, compacting)

    def after_epoch(
        self, record: pb.CheckpointMetadata, reports: Sequence[SubtaskReport], *, may_begin: bool = True
    ) -> None:
        """Drop the edits passed to the committed epoch, and start a round if one is due.

        `may_begin` is false during a clean-up, which does not know the files of a round that starts later.
        """
        if self._handed:
            handed = sum(len(subtask.edits) for subtask in self._waiting)
            self._count(edits_handed=handed, edits_applied=sum(report.edits_applied for report in reports))
            self._waiting, self._handed = (), False
        self._debt_bytes = sum(min(report.due_bytes, self._options.subtask_bytes) for report in reports)
        self._last_epoch = self._last_epoch or record.epoch
        self._take_result(record.epoch)
        idle = self._round is None and not self._waiting and may_begin
        if idle and record.epoch >= self._pause_until and self._is_due(record):
            self._begin(record, reports)

    def settle(self) -> bool:
        """Wait for the round at the end of the input. Return whether one more epoch is worthwhile to apply its edits.

        Without waiting, jobs that run for a few epochs at a time would never complete a round.
        """
        if self._round is None or self._round_bytes < self._options.min_bytes:
            return False
        self._round.wait(self._options.wait_seconds)
        self._take_result(self._round_epoch)
        return bool(self._waiting)

    def start_soon(self) -> None:
        """Start a round after the next epoch, if anything is due."""
        self._start_soon = True

    @property
    def under_way(self) -> bool:
        """Whether a round is running, the names of whose files are not known yet."""
        return self._round is not None

    def stop(self) -> None:
        """Cancel the running round and start no more. No record refers to what it still writes."""
        if self._round is not None:
            self._round.cancel()
        self._round = None
        self._rounds.close()

    def _is_due(self, record: pb.CheckpointMetadata) -> bool:
        options, debt = self._options, self._debt_bytes
        if debt > options.max_debt_bytes or (not self.counts.rounds and debt >= options.min_bytes):
            return True
        return debt > 0 and (self._start_soon or record.epoch - self._last_epoch >= options.every_epochs)

    def _begin(self, record: pb.CheckpointMetadata, reports: Sequence[SubtaskReport]) -> None:
        options = self._options
        taken = chosen(
            reports,
            compacted_in=self._compacted_in,
            max_bytes=options.round_bytes,
            subtask_bytes=options.subtask_bytes,
        )
        entries = {entry.operator_id: entry for entry in record.operators}
        tasks = [
            CompactionTask(
                job_id=record.job_id,
                run=self._run,
                epoch=record.epoch,
                operator=self._operators[report.operator_id],
                parallelism=entries[report.operator_id].parallelism,
                reference=report.reference.SerializeToString(deterministic=True),
                epoch_time_us=record.epoch_time_us,
                max_bytes=self._options.subtask_bytes,
                timeout_seconds=self._options.round_seconds,
            )
            for report in taken
        ]
        self._start_soon = False
        self._compacted_in |= {_place(report): record.epoch for report in taken}
        self._round_epoch = self._last_epoch = record.epoch
        self._round_bytes = self._debt_bytes
        self._round_operators = frozenset(task.operator.operator_id for task in tasks)
        self._round = self._rounds.begin(tasks)
        self._count(rounds=1)
        logger = self._logger.about(epoch=record.epoch)
        logger.info("compacting files of %d subtasks of epoch %d alongside the epochs", len(tasks), record.epoch)

    def _take_result(self, epoch: int) -> None:
        """Take the result of a round that has ended, and cancel one that takes too long."""
        ended = self._round
        if ended is None:
            return
        if not ended.done:
            if time.monotonic() - ended.began > self._options.round_seconds:
                ended.cancel()
            return
        # A cancelled round may still write for a while; no record ever refers to that.
        self._round = None
        try:
            results = ended.result()
        except Exception as error:  # noqa: BLE001 - a round may fail in any way, and none of them stops the job
            self._pause(epoch, f"{error}")
            return
        compacted = [result for result in results if isinstance(result, CompactedSubtask)]
        for failure in (result for result in results if not isinstance(result, CompactedSubtask)):
            self._pause(epoch, failure)
        if len(compacted) == len(results):
            self._failed_in_a_row = 0
        self._waiting = tuple(subtask for subtask in compacted if subtask.edits)
        if not self._waiting:
            # A worker with another memory budget may find nothing to compact.
            self._pause_until = max(self._pause_until, epoch + self._options.every_epochs)
        read_bytes, written_bytes = (
            sum(subtask.read_bytes for subtask in compacted),
            sum(subtask.written_bytes for subtask in compacted),
        )
        self._count(read_bytes=read_bytes, written_bytes=written_bytes)
        logger = self._logger.about(epoch=self._round_epoch)
        logger.info("compacted files of epoch %d: %d bytes into %d", self._round_epoch, read_bytes, written_bytes)

    def _pause(self, epoch: int, failure: str) -> None:
        self._failed_in_a_row += 1
        self._count(failures=1)
        self._pause_until = epoch + min(1 << self._failed_in_a_row, _LONGEST_PAUSE)
        logger = self._logger.about(epoch=self._round_epoch)
        logger.warning("files of epoch %d were not compacted and stay as they are: %s", self._round_epoch, failure)

    def _count(self, **more: int) -> None:
        self.counts = replace(self.counts, **{name: getattr(self.counts, name) + n for name, n in more.items()})


def options_for(slots: int, *, every_epochs: int, subtask_bytes: int) -> CompactionOptions:
    """Return the limits for a cluster of `slots` task slots: every slot that a round uses compacts one subtask."""
    default = CompactionOptions()
    round_bytes = max(default.round_bytes, slots // SLOTS_SHARE * subtask_bytes)
    return replace(
        default,
        every_epochs=every_epochs,
        subtask_bytes=subtask_bytes,
        round_bytes=round_bytes,
        max_debt_bytes=max(default.max_debt_bytes, 4 * round_bytes),
    )


def compaction_of(plan: JobPlan, run: int) -> CompactionRounds:
    """Create the compaction of a job with its settings."""
    return CompactionRounds(
        SparkRounds(plan.session, state_url=plan.state_url, job_id=plan.job_id, share=plan.share),
        run=run,
        operators=plan.operators,
        logger=_logger.about(job=plan.job_id, run=run),
        options=options_for(
            plan.session.sparkContext.defaultParallelism,
            every_epochs=plan.settings.compaction_every,
            subtask_bytes=plan.settings.compaction_bytes,
        ),
    )


def _place(report: SubtaskReport) -> tuple[str, int]:
    return report.operator_id, report.subtask_index
