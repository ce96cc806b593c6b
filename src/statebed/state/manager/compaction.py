"""Compaction of a manager's files on a separate thread, alongside the running tables.

A compaction is planned when its input files are durable. Its result waits for the next checkpoint, with which the table
applies it, or discards it if an input is no longer live. A failure does not harm the state, since the inputs stay. It
is counted, and the compaction is tried again after a later checkpoint; an explicit request raises the error.
"""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from statebed.errors import CheckpointTimeoutError
from statebed.logs import id_logger
from statebed.state.compaction import CompactionJob, Edit
from statebed.state.deadlines import wait_until_ended
from statebed.state.manager.managed_tables import ManagedTable
from statebed.state.manager.options import CompactionMode, ManagerOptions
from statebed.state.messages import TaskInfo
from statebed.state.metrics import CompactionMetrics

_NICENESS = 10
_logger = id_logger(__name__)


@dataclass(frozen=True)
class CompactionReport:
    """Totals of a compaction, whose result the next checkpoint applies."""

    compactions: int = 0
    read_bytes: int = 0
    written_bytes: int = 0


class Compactor:
    """Runs compactions of one manager. `request` and `hand_over` are for the operator's thread."""

    def __init__(
        self, tables: Sequence[ManagedTable], options: ManagerOptions, *, compacting: threading.Lock, task: TaskInfo
    ) -> None:
        """Create it; `compacting` is held during a compaction, so that only one runs in the process at a time."""
        self._tables = tables
        self._one_at_a_time = compacting
        self._options = options
        self._where = task.where
        self._logger = _logger.about(job=task.job_id, operator=task.operator_id, subtask=task.subtask_index)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="statebed-compaction", initializer=_step_back)
        self._lock = threading.Lock()
        self._metrics = CompactionMetrics()
        self._results: list[tuple[ManagedTable, Edit]] = []
        self._requested: list[Future[CompactionReport]] = []
        self._running: Future[CompactionReport] | None = None
        self._begun: list[tuple[str, Future[CompactionReport]]] = []
        self._turns: dict[str, int] = {}
        """Turn in which each table was last compacted: if the byte limit is short, tables take turns."""
        self._closed = threading.Event()

    def metrics(self) -> CompactionMetrics:
        with self._lock:
            return self._metrics

    def after_checkpoint(self) -> None:
        """Start compacting what is due after a durable checkpoint, unless earlier compactions are still running."""
        mode = self._options.compaction
        if mode is CompactionMode.IN_LINE:
            self._compact_due()
        elif mode is CompactionMode.BACKGROUND and (self._running is None or self._running.done()):
            with suppress(RuntimeError):  # it is being closed
                self._running = self._begin(self._tables, self._compact_due)

    def request(self, tables: Sequence[ManagedTable], *, when_durable: Callable[[], None]) -> Future[CompactionReport]:
        """Compact all files of these tables, once `when_durable` returns; the next checkpoint waits for it."""

        def compact_all() -> CompactionReport:
            when_durable()
            self._discard_results(tables)
            return self._compact(tables, max_bytes=None)

        requested = self._begin(tables, compact_all)
        self._requested.append(requested)
        return requested

    def compact_to_edits(self, tables: Sequence[ManagedTable], *, max_bytes: int | None) -> list[tuple[str, Edit]]:
        """Compact due files of about `max_bytes` (None: all that can be) and return the edits unapplied."""
        compacting = self._begin(tables, partial(self._compact, tables, max_bytes=max_bytes))
        if wait([compacting], timeout=self._options.timeout_seconds).not_done:
            raise CheckpointTimeoutError(
                f"the compaction has not finished after {self._options.timeout_seconds:g} seconds",
                where=self._where,
                fix="nothing has changed: try again, perhaps with fewer bytes",
            )
        compacting.result()
        with self._lock:
            results, self._results = self._results, []
        return [(table.config.name, edit) for table, edit in results]

    def hand_over(self) -> None:
        """Hand finished edits to the tables before a checkpoint is taken; wait for requested compactions first."""
        if wait(self._requested, timeout=self._options.timeout_seconds).not_done:
            raise CheckpointTimeoutError(
                f"the requested compaction has not finished after {self._options.timeout_seconds:g} seconds",
                where=self._where,
                fix="nothing was taken: request the checkpoint again, perhaps with a longer time-out",
            )
        self._requested = []
        with self._lock:
            results, self._results = self._results, []
        for table, edit in results:
            table.offer_edit(edit)

    def close(self) -> None:
        """Stop compacting and discard results. A compaction in progress is finished first, if it ends in time."""
        self._closed.set()
        self._thread.shutdown(wait=False, cancel_futures=True)
        seconds, left = self._options.timeout_seconds, "memory and local files of its tables and of the compaction"
        wait_until_ended(self._begun, seconds=seconds, where=self._where, left=left)
        self._discard_results(self._tables)

    def _begin(self, tables: Sequence[ManagedTable], work: Callable[[], CompactionReport]) -> Future[CompactionReport]:
        begun = self._thread.submit(work)
        what = f"a compaction of files of {', '.join(table.config.name for table in tables)}"
        with self._lock:
            self._begun = [*(running for running in self._begun if not running[1].done()), (what, begun)]
        return begun

    def _compact_due(self) -> CompactionReport:
        with self._lock:
            waiting = [table for table, _ in self._results]
        # A result based on files that a waiting result replaces would be discarded.
        tables = [table for table in self._tables if table not in waiting]
        try:
            return self._compact(tables, max_bytes=self._options.max_compaction_bytes, often=True)
        except Exception:  # noqa: BLE001 - it is counted and logged; the files stay, and the state is whole
            return CompactionReport()

    def _compact(
        self, tables: Sequence[ManagedTable], *, max_bytes: int | None, often: bool = False
    ) -> CompactionReport:
        report = CompactionReport()
        for table in sorted(
            tables, key=lambda candidate: (self._turns.get(candidate.config.name, 0), -candidate.due_bytes)
        ):
            left = None if max_bytes is None else max_bytes - report.read_bytes
            if self._closed.is_set() or (left is not None and left <= 0):
                break
            try:
                job = table.plan_compaction(left, not report.compactions, often)
                if job is None:
                    continue
                # A failed compaction counts as a turn; otherwise it would block all other tables.
                self._turns[table.config.name] = 1 + max(self._turns.values(), default=0)
                edit = self._alone(job)
            except BaseException as error:
                self._count(failures=1)
                self._logger.warning(
                    "files of the table %r were not compacted and stay as they are: %r", table.config.name, error
                )
                raise
            with self._lock:
                self._results.append((table, edit))
            written = sum(output.size for output in edit.outputs)
            self._count(compactions=1, read_bytes=job.input_bytes, written_bytes=written)
            report = CompactionReport(
                report.compactions + 1, report.read_bytes + job.input_bytes, report.written_bytes + written
            )
        return report

    def _alone(self, job: CompactionJob) -> Edit:
        if not self._one_at_a_time.acquire(timeout=self._options.timeout_seconds):
            raise CheckpointTimeoutError(
                f"other compactions of the process took longer than {self._options.timeout_seconds:g} seconds",
                where=self._where,
                fix="nothing has changed: try again, perhaps with a longer time-out",
            )
        try:
            return job.run()
        finally:
            self._one_at_a_time.release()

    def _discard_results(self, tables: Sequence[ManagedTable]) -> None:
        with self._lock:
            gone = [edit for table, edit in self._results if table in tables]
            self._results = [(table, edit) for table, edit in self._results if table not in tables]
        for edit in gone:
            edit.discard()

    def _count(self, *, compactions: int = 0, read_bytes: int = 0, written_bytes: int = 0, failures: int = 0) -> None:
        with self._lock:
            old = self._metrics
            self._metrics = replace(
                old,
                compactions=old.compactions + compactions,
                read_bytes=old.read_bytes + read_bytes,
                written_bytes=old.written_bytes + written_bytes,
                failures=old.failures + failures,
            )


def _step_back() -> None:
    """Lower the priority of this thread below the operator's, if the system supports it."""
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
