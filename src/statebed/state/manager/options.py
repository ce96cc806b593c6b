"""Options of a manager: how it stores checkpoints and compacts files."""

from dataclasses import dataclass
from enum import Enum

from statebed.errors import InputError
from statebed.state.arguments import check_kind, checked_number


class CompactionMode(Enum):
    """Times at which numerous or mostly outdated files are compacted. A `Compaction` message works in every mode."""

    BACKGROUND = "background"
    """After each checkpoint, on a separate thread; the next checkpoint after it finishes applies the result."""
    IN_LINE = "in line"
    """After each checkpoint, before it completes; the next one applies the result, so every run writes the same files.
    """
    OFF = "off"
    """Only as far as needed to bound the number of files."""


@dataclass(frozen=True)
class ManagerOptions:
    """Limits and modes of a manager; the defaults suit most jobs."""

    upload_threads: int = 4
    max_upload_bytes: int = 64 << 20
    """Maximum number of encoded bytes waiting for the store."""
    max_pending: int = 2
    """Maximum number of checkpoints in progress; the next one waits for the oldest."""
    timeout_seconds: float = 300.0
    """Time limit of every wait."""
    compaction: CompactionMode = CompactionMode.BACKGROUND
    max_compaction_bytes: int = 256 << 20
    """Bytes of files that are compacted after one checkpoint; a single larger compaction runs alone. The same limit
    applies to a checkpoint that has to compact files of a time-keyed table itself.
    """

    def __post_init__(self) -> None:
        where, fix = "ManagerOptions", "use numbers of at least 1"
        for name in ("upload_threads", "max_upload_bytes", "max_pending", "max_compaction_bytes"):
            number = checked_number(getattr(self, name), name, where=where, fix=fix)
            if number < 1:
                raise InputError(f"`{name}` must be at least 1, got {number}", where=where, fix=fix)
        modes = "give CompactionMode.BACKGROUND, IN_LINE or OFF"
        check_kind(self.compaction, CompactionMode, "compaction", where=where, fix=modes)
        if self.timeout_seconds <= 0:
            raise InputError(
                f"`timeout_seconds` must be positive, got {self.timeout_seconds:g}", where=where, fix="use 300"
            )
