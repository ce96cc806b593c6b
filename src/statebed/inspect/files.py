"""Data files of an epoch's tables, and the epochs and savepoints that need them."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from statebed.checkpoint.log import CheckpointLog
from statebed.checkpoint.references import References
from statebed.errors import StatebedError
from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.records import readable
from statebed.inspect.sizes import READS_AT_ONCE

SORT_ORDERS = {pb.HASH_FIRST: "hash first", pb.BIN_FIRST: "bin first", pb.KEY_ONLY: "key only"}


@dataclass(frozen=True)
class FileSummary:
    """One data file of a table."""

    operator: str
    table: str
    path: str
    """Path relative to the job's folder."""
    level: int
    """Level: 0 if written by an epoch, higher if written by compaction."""
    rows: int
    bytes: int
    subtasks: tuple[int, ...]
    """Subtasks that read it; several after a rescale."""
    owned_first: int
    """First key hash of the range that these subtasks own of it."""
    owned_last: int
    min_key_hash: int
    max_key_hash: int
    min_event_time_us: int | None
    max_event_time_us: int | None
    min_sequence: int
    max_sequence: int
    schema_id: int
    sort_order: str
    epochs: tuple[int, ...] = ()
    """Retained epochs that need it, if they were searched."""
    savepoints: tuple[str, ...] = ()


def files_of(operator: str, subtasks: Iterable[pb.OperatorCheckpointMetadata]) -> list[FileSummary]:
    """Return the files of an operator, sorted by table, level and first key hash."""
    by_path: dict[tuple[str, str], FileSummary] = {}
    for metadata in subtasks:
        for name, table in metadata.tables.items():
            for index, part in table.subtasks.items():
                for file in part.files:
                    summary = _file(operator, name, index, file)
                    known = by_path.get((name, file.path))
                    by_path[name, file.path] = _joined(known, summary) if known else summary
    return sorted(by_path.values(), key=lambda f: (f.table, f.level, f.owned_first, f.min_sequence, f.path))


@dataclass(frozen=True)
class Referrers:
    """Epochs and savepoints that need each file."""

    epochs: dict[str, tuple[int, ...]]
    savepoints: dict[str, tuple[str, ...]]
    looked_at: tuple[int, ...]
    """Epochs that were searched."""
    complete: bool
    """Whether these are all retained epochs."""

    def of(self, file: FileSummary) -> FileSummary:
        """Return the file with the epochs and savepoints that need it."""
        return replace(file, epochs=self.epochs.get(file.path, ()), savepoints=self.savepoints.get(file.path, ()))


def referrers(log: CheckpointLog, head: pb.CheckpointMetadata, *, limit: int) -> Referrers:
    """Collect the files that the newest `limit` retained epochs and every savepoint need."""
    numbers = [number for number in log.numbers() if number >= head.min_epoch]
    looked = numbers[-limit:]
    with ThreadPoolExecutor(READS_AT_ONCE, thread_name_prefix="statebed-records") as pool:
        records = [record for record in pool.map(lambda number: readable(log, number), looked) if record]
    references = References(log)
    epochs: dict[str, list[int]] = {}
    for record in records:
        for path in _named(references, record):
            epochs.setdefault(path, []).append(record.epoch)
    savepoints: dict[str, list[str]] = {}
    for pin in head.pins:
        for path in _named(references, _pinned(log, pin)):
            savepoints.setdefault(path, []).append(pin.savepoint)
    return Referrers(
        epochs={path: tuple(needing) for path, needing in epochs.items()},
        savepoints={path: tuple(sorted(needing)) for path, needing in savepoints.items()},
        looked_at=tuple(record.epoch for record in records),
        complete=len(looked) == len(numbers),
    )


def ranges(numbers: Sequence[int]) -> str:
    """Format ascending numbers as ranges.

    >>> ranges([1, 2, 3, 7])
    '1-3, 7'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)


def _named(references: References, record: pb.CheckpointMetadata | None) -> Iterable[str]:
    if record is None:
        return ()
    try:
        return references.of(record, interrupted=True).sizes
    except StatebedError:  # damaged, or removed by clean-up in the meantime: `statebed verify` reports it
        return ()


def _pinned(log: CheckpointLog, pin: pb.Pin) -> pb.CheckpointMetadata | None:
    try:
        return log.savepoint(pin)
    except StatebedError:
        return None


def _file(operator: str, table: str, subtask: int, file: pb.FileEntry) -> FileSummary:
    return FileSummary(
        operator=operator,
        table=table,
        path=file.path,
        level=file.level,
        rows=file.rows,
        bytes=file.size,
        subtasks=(subtask,),
        owned_first=file.owned.first,
        owned_last=file.owned.last,
        min_key_hash=file.min_key_hash,
        max_key_hash=file.max_key_hash,
        min_event_time_us=file.min_time_us if file.HasField("min_time_us") else None,
        max_event_time_us=file.max_time_us if file.HasField("max_time_us") else None,
        min_sequence=file.min_sequence,
        max_sequence=file.max_sequence,
        schema_id=file.schema_id,
        sort_order=SORT_ORDERS.get(file.sort_order, "unknown"),
    )


def _joined(known: FileSummary, other: FileSummary) -> FileSummary:
    return replace(
        known,
        subtasks=tuple(sorted({*known.subtasks, *other.subtasks})),
        owned_first=min(known.owned_first, other.owned_first),
        owned_last=max(known.owned_last, other.owned_last),
    )
