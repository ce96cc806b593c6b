"""Check of the records of a log, each read once: damaged ones, missing ones, and the savepoints that they retain.

Every number from the lowest retained one to the highest must have its record. A missing newest record is only detected
by objects that are written after it: markers of sinks, answers to requests, compacted files of its run.
"""

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from statebed.checkpoint.log import CheckpointLog
from statebed.errors import EpochNotRetainedError, FormatError, NewerFormatError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.inspect.verification.findings import DamageKind, Finding, ObjectKind
from statebed.inspect.verification.needs import NeedingRecord, finding

READS_AT_ONCE = 8
_GONE = "something other than statebed removed it"


@dataclass(frozen=True)
class LogReading:
    """Contents of the log."""

    records: Mapping[int, pb.CheckpointMetadata]
    """Readable records by number."""
    findings: tuple[Finding, ...] = ()
    bytes: int = 0
    """Bytes of all records, readable or not."""
    lost: tuple[int, ...] = field(default=())
    """Numbers whose records are damaged or missing."""

    @property
    def head(self) -> pb.CheckpointMetadata | None:
        return self.records[max(self.records)] if self.records else None

    @property
    def min_epoch(self) -> int:
        return self.head.min_epoch if self.head is not None else 1

    def needing_record(self, epoch: int) -> NeedingRecord:
        return NeedingRecord(epoch, strict=epoch >= self.min_epoch)

    def pins(self) -> dict[str, tuple[pb.Pin, bool]]:
        """Return the savepoints of all records by the paths of their copies, and whether each is still retained."""
        alive = {pin.path for pin in self.head.pins} if self.head is not None else set()
        return {pin.path: (pin, pin.path in alive) for record in self.records.values() for pin in record.pins}


def read_log(log: CheckpointLog, listed: Iterable[str]) -> LogReading:
    """Read every record; `listed` are the objects that existed before."""
    listed = list(listed)
    records: dict[int, pb.CheckpointMetadata] = {}
    findings: dict[int, Finding] = {}
    size = 0
    for number, data in _read_all(log):
        size += len(data)
        try:
            records[number] = log.parse(data, number)
        except NewerFormatError:
            raise
        except FormatError as error:
            findings[number] = _record_finding(number, DamageKind.DAMAGED, error.what)
    numbers = {*records, *findings}
    for number in _missing(log, numbers, records, listed):
        findings[number] = _record_finding(number, DamageKind.MISSING, _GONE)
    return LogReading(records, tuple(findings[n] for n in sorted(findings)), size, tuple(sorted(findings)))


def _read_all(log: CheckpointLog) -> Iterator[tuple[int, bytes]]:
    """Yield the bytes of every existing record in ascending order."""

    def read(number: int) -> tuple[int, bytes | None]:
        try:
            return number, log.read_bytes(number)
        except EpochNotRetainedError:
            return number, None  # an epoch that was started, or a record that was removed in the meantime

    with ThreadPoolExecutor(READS_AT_ONCE, thread_name_prefix="statebed-verify") as pool:
        for number, data in pool.map(read, log.numbers()):
            if data is not None:
                yield number, data


def _missing(
    log: CheckpointLog, numbers: set[int], records: Mapping[int, pb.CheckpointMetadata], listed: list[str]
) -> list[int]:
    last = max([*numbers, *map(log.committed_by, listed)], default=0)
    head = records[max(records)] if records else None
    # Below the retained range, records are removed in ascending order, so all from the lowest remaining one must exist.
    first = min(numbers, default=last)
    if head is not None and head.epoch == max(numbers):
        # A newer record that cannot be read may have allowed clean-up to remove more.
        first = min(first, head.min_epoch, max(head.epoch - 1, 1))
    absent = [number for number in range(first, last + 1) if number not in numbers and not log.exists(number)]
    # The log may have advanced while it was read; records removed in the meantime are not missing.
    newest = newest_record(log) if absent else None
    return [number for number in absent if newest is None or number >= newest.min_epoch]


def newest_record(log: CheckpointLog) -> pb.CheckpointMetadata | None:
    """Return the newest record that is readable now, regardless of gaps below it."""
    observations = (log.observe(number) for number in reversed(log.numbers()))
    return next((observation.record for observation in observations if observation.record is not None), None)


def _record_finding(number: int, trouble: DamageKind, problem: str) -> Finding:
    return finding(names.record(number), ObjectKind.RECORD, trouble, problem, [NeedingRecord(number)])
