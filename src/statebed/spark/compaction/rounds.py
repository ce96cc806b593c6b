"""Compaction on Spark: rounds of a job of its own, beside the epochs, over the files of committed epochs.

After an epoch, its subtasks have said how many bytes of their files are worth merging. When that is enough, a round
merges some of them in a Spark job of its own, on one thread of the driver, while epochs go on. The edits that come of
it are handed to the next epoch, which applies those that still fit; its record is what makes them count. Whatever goes
wrong with a round costs its work: it is logged and counted, and later ones begin after a pause. An epoch waits for a
round only when files gather faster than rounds merge them.

All methods are for the controller, which serialises its calls; rounds begin and garbage is collected by nobody else.
"""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.logs import IdLogger, id_logger
from statebed.operators import Operator
from statebed.spark.compaction.round_job import Round, Rounds, SparkRounds
from statebed.spark.plan.job_plan import JobPlan
from statebed.subtasks import CompactedSubtask, CompactionTask, SubtaskReport

_logger = id_logger(__name__)
_LONGEST_PAUSE = 64


@dataclass(frozen=True)
class CompactionOptions:
    """When rounds begin, how much they do, and when epochs wait for them."""

    every_epochs: int = 32
    """A round begins after so many epochs, if anything is worth merging."""
    least_bytes: int = 16 << 20
    """With so much of it the first round of a query begins at once: the query may end before."""
    subtask_bytes: int = 256 << 20
    """Bytes of files that a round merges of one subtask, about; a single merge that is larger goes alone."""
    round_bytes: int = 1 << 30
    """The same, of all subtasks."""
    most_debt_bytes: int = 4 << 30
    most_epochs: int = 8
    """With more bytes worth merging a round begins at once. With more of them, or when a round goes on for more epochs,
    an epoch waits for the round.
    """
    wait_seconds: float = 60.0
    """The longest that an epoch waits."""
    round_seconds: float = 600.0
    """A round that takes longer is given up."""


@dataclass(frozen=True)
class CompactionCounts:
    """What rounds have done since the query began."""

    rounds: int = 0
    failures: int = 0
    """Rounds, or subtasks of rounds, that came to nothing."""
    edits_handed: int = 0
    edits_applied: int = 0
    """By a committed epoch; the others had lost an input."""
    read_bytes: int = 0
    written_bytes: int = 0
    waits: int = 0
    """Epochs that waited for a round."""


@dataclass(frozen=True)
class EpochEdits:
    """What the subtasks of the next epoch are told, by operator."""

    edits: Mapping[str, tuple[bytes, ...]] = field(default_factory=dict)
    merging_epoch: Mapping[str, int] = field(default_factory=dict)
    """The base of the round that is under way, for its operators."""


@dataclass(frozen=True)
class FilesInFlight(Collection[str]):
    """Outputs that a record may still come to name: those of edits that wait and, while a round goes on, all that it
    may have written.
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
    reports: Sequence[SubtaskReport], *, merged_in: Mapping[tuple[str, int], int], most_bytes: int
) -> list[SubtaskReport]:
    """Of which subtasks a round merges files: those whose turn was longest ago, of these with most to merge first."""
    due = sorted(
        (report for report in reports if report.due_bytes),
        key=lambda one: (merged_in.get(_place(one), 0), -one.due_bytes, _place(one)),
    )
    taken: list[SubtaskReport] = []
    total = 0
    for report in due:
        total += report.due_bytes
        if taken and total > most_bytes:
            break
        taken.append(report)
    return taken


class CompactionRounds:
    """The rounds of one query."""

    def __init__(
        self,
        rounds: Rounds,
        *,
        run: int,
        operators: Mapping[str, Operator],
        options: CompactionOptions | None = None,
        told: IdLogger = _logger,
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
        self._merged_in: dict[tuple[str, int], int] = {}
        self._debt_bytes = 0
        self._last_epoch = 0
        self._pause_until = 0
        self._failed_in_a_row = 0
        self._hastened = False
        self._told = told
        self.counts = CompactionCounts()

    @property
    def in_flight(self) -> FilesInFlight:
        """For the collection of garbage."""
        paths = frozenset(path for one in self._waiting for path in one.outputs)
        return FilesInFlight(paths, self._run if self.under_way else None)

    def before_epoch(self, epoch: int) -> EpochEdits:
        """What the subtasks of this epoch are told; first waits for a round that lags too far behind."""
        options = self._options
        behind = epoch - self._round_epoch > options.most_epochs or self._debt_bytes > options.most_debt_bytes
        if self._round is not None and behind and not self._round.done:
            told = self._told.about(epoch=epoch)
            told.info("epoch %d waits for the compaction that began after epoch %d", epoch, self._round_epoch)
            self._count(waits=1)
            self._round.wait(options.wait_seconds)
        self._take_result(epoch)
        self._handed = True
        edits: dict[str, tuple[bytes, ...]] = {}
        for one in self._waiting:
            edits[one.operator_id] = (*edits.get(one.operator_id, ()), *one.edits)
        merging = dict.fromkeys(self._round_operators, self._round_epoch) if self._round is not None else {}
        return EpochEdits(edits, merging)

    def after_epoch(
        self, record: pb.CheckpointMetadata, reports: Sequence[SubtaskReport], *, may_begin: bool = True
    ) -> None:
        """Drop the edits that the committed epoch was handed, and begin a round if one is due.

        `may_begin` is false while garbage is collected, which does not know the files of a round that begins later.
        """
        if self._handed:
            handed = sum(len(one.edits) for one in self._waiting)
            self._count(edits_handed=handed, edits_applied=sum(report.edits_applied for report in reports))
            self._waiting, self._handed = (), False
        self._debt_bytes = sum(report.due_bytes for report in reports)
        self._last_epoch = self._last_epoch or record.epoch
        self._take_result(record.epoch)
        idle = self._round is None and not self._waiting and may_begin
        if idle and record.epoch >= self._pause_until and self._is_due(record):
            self._begin(record, reports)

    def settle(self) -> bool:
        """At the end of the input, whether one more epoch is worth it, to take what was merged: where there was much.

        Waits for the round: jobs that run for a few epochs at a time would never see the end of one.
        """
        if self._round is None or self._round_bytes < self._options.least_bytes:
            return False
        self._round.wait(self._options.wait_seconds)
        self._take_result(self._round_epoch)
        return bool(self._waiting)

    def hasten(self) -> None:
        """Begin a round after the next epoch, if anything is worth merging."""
        self._hastened = True

    @property
    def under_way(self) -> bool:
        """Whether a round goes on, whose files have names that nobody knows yet."""
        return self._round is not None

    def stop(self) -> None:
        """Give up what goes on, and begin no more. What is still written is never named."""
        if self._round is not None:
            self._round.cancel()
        self._round = None
        self._rounds.close()

    def _is_due(self, record: pb.CheckpointMetadata) -> bool:
        options, debt = self._options, self._debt_bytes
        if debt > options.most_debt_bytes or (not self.counts.rounds and debt >= options.least_bytes):
            return True
        return debt > 0 and (self._hastened or record.epoch - self._last_epoch >= options.every_epochs)

    def _begin(self, record: pb.CheckpointMetadata, reports: Sequence[SubtaskReport]) -> None:
        taken = chosen(reports, merged_in=self._merged_in, most_bytes=self._options.round_bytes)
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
                most_bytes=self._options.subtask_bytes,
                timeout_seconds=self._options.round_seconds,
            )
            for report in taken
        ]
        self._hastened = False
        self._merged_in |= {_place(report): record.epoch for report in taken}
        self._round_epoch = self._last_epoch = record.epoch
        self._round_bytes = self._debt_bytes
        self._round_operators = frozenset(task.operator.operator_id for task in tasks)
        self._round = self._rounds.begin(tasks)
        self._count(rounds=1)
        told = self._told.about(epoch=record.epoch)
        told.info("files of %d subtasks of epoch %d are merged beside the epochs", len(tasks), record.epoch)

    def _take_result(self, epoch: int) -> None:
        """Take what a round gave that has ended; give up one that takes too long."""
        ended = self._round
        if ended is None:
            return
        if not ended.done:
            if time.monotonic() - ended.began > self._options.round_seconds:
                ended.cancel()
            return
        # What is still running after it was given up may write for a while; nothing of that is ever named.
        self._round = None
        try:
            results = ended.result()
        except Exception as error:  # noqa: BLE001 - a round may fail in any way, and none of them stops the job
            self._pause(epoch, f"{error}")
            return
        made = [one for one in results if isinstance(one, CompactedSubtask)]
        for failure in (one for one in results if not isinstance(one, CompactedSubtask)):
            self._pause(epoch, failure)
        if len(made) == len(results):
            self._failed_in_a_row = 0
        self._waiting = tuple(one for one in made if one.edits)
        if not self._waiting:
            # A worker with another memory budget may see nothing worth merging.
            self._pause_until = max(self._pause_until, epoch + self._options.every_epochs)
        read_bytes, written_bytes = sum(one.read_bytes for one in made), sum(one.written_bytes for one in made)
        self._count(read_bytes=read_bytes, written_bytes=written_bytes)
        told = self._told.about(epoch=self._round_epoch)
        told.info("of files of epoch %d, %d bytes were merged into %d", self._round_epoch, read_bytes, written_bytes)

    def _pause(self, epoch: int, failure: str) -> None:
        self._failed_in_a_row += 1
        self._count(failures=1)
        self._pause_until = epoch + min(1 << self._failed_in_a_row, _LONGEST_PAUSE)
        told = self._told.about(epoch=self._round_epoch)
        told.warning("files of epoch %d were not merged, and stay as they are: %s", self._round_epoch, failure)

    def _count(self, **more: int) -> None:
        self.counts = replace(self.counts, **{name: getattr(self.counts, name) + n for name, n in more.items()})


def compaction_of(plan: JobPlan, run: int) -> CompactionRounds:
    """The compaction of a job, as its settings say."""
    return CompactionRounds(
        SparkRounds(plan.session, state_url=plan.state_url, job_id=plan.job_id, share=plan.share),
        run=run,
        operators=plan.operators,
        told=_logger.about(job=plan.job_id, run=run),
        options=CompactionOptions(
            every_epochs=plan.settings.compaction_every, subtask_bytes=plan.settings.compaction_bytes
        ),
    )


def _place(report: SubtaskReport) -> tuple[str, int]:
    return report.operator_id, report.subtask_index
