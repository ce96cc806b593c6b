"""Reader of manifests of version 1, which statebed wrote before entries were sealed. They are no longer written.

Every 32nd entry also sums up the 32 entries that end with it, every 1024th the last 1024, and so on. Entries have no
checksum: contradictions are refused, other damage is not detected. The first run that opens such a table writes a
sealed base with all its files.
"""

from collections.abc import Callable

import msgspec

from statebed.errors import CorruptObjectError
from statebed.sinks.manifest.entries import FIX, EntryHeader, Number, TableFile, check_files

VERSION = 1
SUMMARY_EVERY = 32


class Summary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Combined changes of successive entries."""

    since: Number
    """Number of the entry before the first summed up."""
    kept: Number | None = None
    """Newest epoch whose earlier files stay visible, or None if all do."""
    files: tuple[TableFile, ...] = ()


class UnsealedEntry(EntryHeader, frozen=True):
    """An entry of version 1."""

    generation: Number = 0
    schema: str = ""
    files: tuple[TableFile, ...] = ()
    summary: Summary | None = None

    @property
    def change(self) -> Summary:
        """Changes of this entry and of those that it sums up."""
        own = Summary(self.number - 1, self.epoch if self.kind == "rollback" else None, self.files)
        return self.summary or own


def check_unsealed(entry: UnsealedEntry, number: int, *, where: str) -> None:
    """Raise CorruptObjectError if the entry is not `number`, or if its fields contradict each other."""
    since = summarised_since(number)
    if (
        entry.version != VERSION
        or entry.number != number
        or since != (entry.summary.since if entry.summary else None)
        or entry.generation > number
        or (entry.kind != "epoch" and entry.files)
    ):
        raise CorruptObjectError(
            f"the object of entry {number} of the table's manifest holds entry {entry.number}, version "
            f"{entry.version}, or its summary covers the wrong entries",
            where=where,
            fix=FIX,
        )
    check_files(entry.files, where=where, first=entry.epoch, last=entry.epoch)
    check_files(entry.change.files, where=where, first=0, last=entry.epoch)


def files_up_to(newest: UnsealedEntry, read: Callable[[int], UnsealedEntry]) -> tuple[str, tuple[TableFile, ...]]:
    """Return schema and files of the table after its newest entry; `read` returns a checked entry."""
    schema, files = newest.schema, list[TableFile]()
    change, kept = newest.change, newest.epoch
    while True:
        files += [file for file in reversed(change.files) if file.epoch <= kept]
        kept = kept if change.kept is None else min(kept, change.kept)
        if not change.since:
            return schema, tuple(reversed(files))
        entry = read(change.since)  # smaller than before, which each entry's check ensures
        schema, change = schema or entry.schema, entry.change


def summarised_since(number: int) -> int | None:
    """Return the number before the first entry that this entry sums up, or None if it has no summary.

    >>> summarised_since(33), summarised_since(64), summarised_since(2048)
    (None, 32, 1024)
    """
    span = 1
    while number % (span * SUMMARY_EVERY) == 0:
        span *= SUMMARY_EVERY
    return number - span if span > 1 else None
