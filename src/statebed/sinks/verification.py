"""Verification of a job's sinks: what their targets hold, compared with the log as a start of the job compares it.

It only reads, and may run while the job does: a position that changes in the meantime is read again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from statebed.checkpoint import Run
from statebed.checkpoint.log import CheckpointLog
from statebed.errors import RollbackError, SinkStartError, StatebedError
from statebed.inspect.verification import SinkTable
from statebed.protocol import SinkIdentity
from statebed.protocol.sink_start import NOT_IN_STATE, plan_sink
from statebed.sinks.manifest import TableFinding
from statebed.sinks.recorded_targets import HeldEpoch, RecordedTarget, UncheckedError, open_target

_ATTEMPTS = 5
"""Number of times that a position which seems wrong is compared, while it changes."""


@dataclass(frozen=True)
class SinkVerification:
    """Result for one sink."""

    sink_id: str
    kind: str
    where: str
    """Target, as the newest record names it."""
    epoch: int = 0
    """Newest epoch that the target has."""
    files: int = 0
    """Number of data files whose existence and size were checked."""
    findings: tuple[TableFinding, ...] = ()
    not_checked: str = ""
    """Reason why the target was not checked; empty if it was."""

    @property
    def whole(self) -> bool:
        """Whether nothing is damaged or missing, as far as it was checked."""
        return not self.findings


def verify_sinks(
    log: CheckpointLog, tables: Sequence[SinkTable], *, dsns: Mapping[str, str] | None = None
) -> list[SinkVerification]:
    """Check the targets of sinks that keep their position there. `dsns` holds connection strings of PostgreSQL sinks by
    sink.
    """
    sinks = [_ComparedSink(log, table, (dsns or {}).get(table.sink_id)) for table in tables]
    for sink in sinks:
        sink.look()
    # After the positions: a record is committed before a sink has its epoch, so the log is never behind a position.
    run = _preview(log) if any(sink.held is not None for sink in sinks) else None
    return [sink.compared(run) for sink in sinks]


class _ComparedSink:
    """A sink, while it is compared."""

    def __init__(self, log: CheckpointLog, table: SinkTable, dsn: str | None) -> None:
        self._log = log
        self._table = table
        self._dsn = dsn
        self._target: RecordedTarget | None = None
        self.held: HeldEpoch | None = None
        """Position in the target, or None if it was not read."""
        self._result = SinkVerification(table.sink_id, table.kind, table.target)

    def look(self) -> None:
        """Read the position."""
        try:
            if self._target is None:
                self._target = open_target(self._table, f"{self._log.job_id}/{self._table.sink_id}", dsn=self._dsn)
            self.held = self._target.held()
        except UncheckedError as error:
            self.held, self._result = None, replace(self._result, not_checked=str(error))
        except StatebedError as error:
            self.held, self._result = None, self._with(error.what, where=error.where)

    def compared(self, run: Run | str | None) -> SinkVerification:
        """Return the result. `run` is the one that a start would open, or why there is none."""
        for _ in range(_ATTEMPTS):
            if self.held is None:
                return self._result
            if run is None or isinstance(run, str):
                return replace(self._result, not_checked=f"a start would refuse the log: {run}")
            before, problem = self.held, self._problem(run, self.held)
            if not problem:
                return self._with_files()
            self.look()
            if self.held == before:
                return replace(self._with(problem), epoch=before.position.epoch if before.position else 0)
            run = _preview(self._log)
        return replace(self._result, not_checked="its position changed whenever it was compared with the log")

    def _problem(self, run: Run, held: HeldEpoch) -> str:
        """Return why the log and the target do not agree, empty if they do."""
        table = self._table
        identity = SinkIdentity(table.kind, table.target, keeps_position=True)
        facts = run.sink_facts(table.sink_id, identity, held.position)
        lead = f"{held.absence}: " if held.absence else ""
        try:
            plan_sink(facts, choice=None, rollback_allowed=run.rollback_allowed, no_rebuild=NOT_IN_STATE)
        except (SinkStartError, RollbackError) as error:
            return lead + error.what
        if facts.lost:
            at = held.position.epoch if held.position else 0
            return f"{lead}sink {table.sink_id} is at epoch {at}, but the job published epoch {facts.lost[-1]} to it"
        return ""

    def _with_files(self) -> SinkVerification:
        assert self._target is not None
        assert self.held is not None
        position = self.held.position
        result = replace(self._result, epoch=position.epoch if position else 0)
        try:
            files, problems = self._target.check_files()
        except UncheckedError as error:
            return replace(result, not_checked=str(error))
        except StatebedError as error:
            return replace(result, findings=(TableFinding(error.where or result.where, error.what),))
        findings = tuple(TableFinding(problem.path, problem.problem) for problem in problems)
        return replace(result, files=files, findings=findings)

    def _with(self, problem: str, where: str = "") -> SinkVerification:
        return replace(self._result, findings=(TableFinding(where or self._table.target, problem),))


def _preview(log: CheckpointLog) -> Run | str:
    """Return the run that a start would open, or why it would be refused."""
    try:
        return Run.preview(log.store, log.job_id)
    except StatebedError as error:
        return error.what
