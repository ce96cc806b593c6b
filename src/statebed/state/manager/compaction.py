"""Merges of a manager's files, on a thread of their own, beside the running tables.

A merge is planned when the files that it reads are durable. Its result waits for the next checkpoint, with which the
table applies it, or discards it when an input has left. Nothing that goes wrong here harms the state: the inputs stay.
A failed merge is counted, and tried again after a later checkpoint; whoever asked for it gets the error.
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
    """What was merged; the next checkpoint takes it."""

    merges: int = 0
    read_bytes: int = 0
    written_bytes: int = 0


class Compactor:
    """One per manager. `ask` and `hand_over` are for the operator's thread."""

    def __init__(
        self, tables: Sequence[ManagedTable], options: ManagerOptions, *, merging: threading.Lock, task: TaskInfo
    ) -> None:
        """`merging` lets one merge of the process go on at a time."""
        self._tables = tables
        self._merging = merging
        self._options = options
        self._where = task.where
        self._logger = _logger.about(job=task.job_id, operator=task.operator_id, subtask=task.subtask_index)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="statebed-compaction", initializer=_step_back)
        self._lock = threading.Lock()
        self._metrics = CompactionMetrics()
        self._results: list[tuple[ManagedTable, Edit]] = []
        self._asked: list[Future[CompactionReport]] = []
        self._running: Future[CompactionReport] | None = None
        self._begun: list[tuple[str, Future[CompactionReport]]] = []
        self._turns: dict[str, int] = {}
        """When a merge of each table was tried last: where bytes are short, tables take turns."""
        self._closed = threading.Event()

    def metrics(self) -> CompactionMetrics:
        with self._lock:
            return self._metrics

    def after_checkpoint(self) -> None:
        """Merge what is due, now that a checkpoint is durable; nothing while earlier merges go on."""
        mode = self._options.compaction
        if mode is CompactionMode.IN_LINE:
            self._merge_due()
        elif mode is CompactionMode.BACKGROUND and (self._running is None or self._running.done()):
            with suppress(RuntimeError):  # it is being closed
                self._running = self._begin(self._tables, self._merge_due)

    def ask(self, tables: Sequence[ManagedTable], *, when_durable: Callable[[], None]) -> Future[CompactionReport]:
        """Merge all files of these tables, once `when_durable` returns; the next checkpoint waits for it."""

        def merge_all() -> CompactionReport:
            when_durable()
            self._discard_results(tables)
            return self._merge(tables, most_bytes=None)

        asked = self._begin(tables, merge_all)
        self._asked.append(asked)
        return asked

    def merge_apart(self, tables: Sequence[ManagedTable], *, most_bytes: int | None) -> list[tuple[str, Edit]]:
        """Merge what is due, about so many bytes of files (None: all that can be); no checkpoint here takes it."""
        merging = self._begin(tables, partial(self._merge, tables, most_bytes=most_bytes))
        if wait([merging], timeout=self._options.timeout_seconds).not_done:
            raise CheckpointTimeoutError(
                f"the files are not merged after {self._options.timeout_seconds:g} seconds",
                where=self._where,
                fix="nothing has changed: ask again, perhaps for fewer bytes",
            )
        merging.result()
        with self._lock:
            results, self._results = self._results, []
        return [(table.config.name, edit) for table, edit in results]

    def hand_over(self) -> None:
        """Give the tables what was merged, for the checkpoint that is about to be taken; what was asked for is waited
        for.
        """
        if wait(self._asked, timeout=self._options.timeout_seconds).not_done:
            raise CheckpointTimeoutError(
                f"the compaction that was asked for is not done after {self._options.timeout_seconds:g} seconds",
                where=self._where,
                fix="nothing was taken: ask for the checkpoint again, perhaps with a longer time-out",
            )
        self._asked = []
        with self._lock:
            results, self._results = self._results, []
        for table, edit in results:
            table.offer_edit(edit)

    def close(self) -> None:
        """Merge no more, and remove what nobody will take. A merge under way is finished first, if it ends in time."""
        self._closed.set()
        self._thread.shutdown(wait=False, cancel_futures=True)
        seconds, left = self._options.timeout_seconds, "memory and local files of its tables and of the merge"
        wait_until_ended(self._begun, seconds=seconds, where=self._where, left=left)
        self._discard_results(self._tables)

    def _begin(self, tables: Sequence[ManagedTable], merge: Callable[[], CompactionReport]) -> Future[CompactionReport]:
        begun = self._thread.submit(merge)
        what = f"a merge of files of {', '.join(table.config.name for table in tables)}"
        with self._lock:
            self._begun = [*(one for one in self._begun if not one[1].done()), (what, begun)]
        return begun

    def _merge_due(self) -> CompactionReport:
        with self._lock:
            waiting = [table for table, _ in self._results]
        # What is merged from files that a waiting result replaces would be discarded.
        tables = [table for table in self._tables if table not in waiting]
        try:
            return self._merge(tables, most_bytes=self._options.max_compaction_bytes)
        except Exception:  # noqa: BLE001 - it is counted and logged; the files stay, and the state is whole
            return CompactionReport()

    def _merge(self, tables: Sequence[ManagedTable], *, most_bytes: int | None) -> CompactionReport:
        report = CompactionReport()
        for table in sorted(tables, key=lambda one: (self._turns.get(one.config.name, 0), -one.due_bytes)):
            left = None if most_bytes is None else most_bytes - report.read_bytes
            if self._closed.is_set() or (left is not None and left <= 0):
                break
            try:
                job = table.plan_compaction(left, not report.merges)
                if job is None:
                    continue
                # A merge that fails was a turn, too: it would keep all others from theirs.
                self._turns[table.config.name] = 1 + max(self._turns.values(), default=0)
                edit = self._alone(job)
            except BaseException as error:
                self._count(failures=1)
                self._logger.warning(
                    "files of the table %r were not merged, and stay as they are: %r", table.config.name, error
                )
                raise
            with self._lock:
                self._results.append((table, edit))
            written = sum(output.size for output in edit.outputs)
            self._count(merges=1, read_bytes=job.input_bytes, written_bytes=written)
            report = CompactionReport(
                report.merges + 1, report.read_bytes + job.input_bytes, report.written_bytes + written
            )
        return report

    def _alone(self, job: CompactionJob) -> Edit:
        if not self._merging.acquire(timeout=self._options.timeout_seconds):
            raise CheckpointTimeoutError(
                f"other merges of the process went on for {self._options.timeout_seconds:g} seconds",
                where=self._where,
                fix="nothing has changed: ask again, perhaps with a longer time-out",
            )
        try:
            return job.run()
        finally:
            self._merging.release()

    def _discard_results(self, tables: Sequence[ManagedTable]) -> None:
        with self._lock:
            gone = [edit for table, edit in self._results if table in tables]
            self._results = [(table, edit) for table, edit in self._results if table not in tables]
        for edit in gone:
            edit.discard()

    def _count(self, *, merges: int = 0, read_bytes: int = 0, written_bytes: int = 0, failures: int = 0) -> None:
        with self._lock:
            old = self._metrics
            self._metrics = replace(
                old,
                merges=old.merges + merges,
                read_bytes=old.read_bytes + read_bytes,
                written_bytes=old.written_bytes + written_bytes,
                failures=old.failures + failures,
            )


def _step_back() -> None:
    """Let the operator's thread go first, where the system gives threads a priority."""
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
