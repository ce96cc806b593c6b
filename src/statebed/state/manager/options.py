"""How a manager stores its checkpoints and merges its files."""

from dataclasses import dataclass
from enum import Enum

from statebed.errors import InputError
from statebed.state.arguments import check_kind, checked_number


class CompactionMode(Enum):
    """When files are merged that are many or mostly outdated. A `Compaction` message does it in every mode."""

    BACKGROUND = "background"
    """After each checkpoint, on a thread of its own; the next checkpoint to come takes the result."""
    IN_LINE = "in line"
    """After each checkpoint, before it is answered; the next one takes the result: the same files in every run."""
    OFF = "off"
    """Only as far as the number of files must be bounded."""


@dataclass(frozen=True)
class ManagerOptions:
    """How a manager works; every number has a bound that suits most."""

    upload_threads: int = 4
    max_upload_bytes: int = 64 << 20
    """Encoded bytes that may wait for the store."""
    max_pending: int = 2
    """Checkpoints that may be under way; the next one waits for the oldest."""
    timeout_seconds: float = 300.0
    """Of every wait."""
    compaction: CompactionMode = CompactionMode.BACKGROUND
    max_compaction_bytes: int = 256 << 20
    """Bytes of files that are merged after one checkpoint; a single merge that is larger goes alone. A checkpoint that
    has to merge files of a time-keyed table itself takes no more, either.
    """

    def __post_init__(self) -> None:
        where, fix = "ManagerOptions", "use numbers from 1 on"
        given = (self.upload_threads, self.max_upload_bytes, self.max_pending, self.max_compaction_bytes)
        numbers = [checked_number(number, "number", where=where, fix=fix) for number in given]
        modes = "give CompactionMode.BACKGROUND, IN_LINE or OFF"
        check_kind(self.compaction, CompactionMode, "compaction", where=where, fix=modes)
        if min(numbers) < 1 or self.timeout_seconds <= 0:
            raise InputError(f"the options {self} leave no way to store anything", where=where, fix=fix)
