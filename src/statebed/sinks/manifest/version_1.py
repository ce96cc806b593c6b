"""Reads manifests of version 1, which statebed wrote before entries were sealed. Nothing writes them any more.

Every 32nd entry also sums up the 32 entries that end with it, every 1024th the last 1024, and so on. Entries have no
checksum: what contradicts itself is refused, and other damage is not found. The first run that opens such a table
writes a sealed base with all its files.
"""

from collections.abc import Callable

import msgspec

from statebed.errors import CorruptObjectError
from statebed.sinks.manifest.entries import FIX, EntryHeader, Number, TableFile, check_files

VERSION = 1
SUMMARY_EVERY = 32


class Summary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What successive entries change together."""

    since: Number
    """They are the entries after this number."""
    kept: Number | None = None
    """Of the files before, only those of epochs up to this stay visible; None: all of them."""
    files: tuple[TableFile, ...] = ()


class UnsealedEntry(EntryHeader, frozen=True):
    """One entry of version 1."""

    generation: Number = 0
    schema: str = ""
    files: tuple[TableFile, ...] = ()
    summary: Summary | None = None

    @property
    def change(self) -> Summary:
        """What this entry and those that it sums up change."""
        own = Summary(self.number - 1, self.epoch if self.kind == "rollback" else None, self.files)
        return self.summary or own


def check_unsealed(entry: UnsealedEntry, number: int, *, where: str) -> None:
    """Refuse an entry that stands at the place of another, or whose members contradict each other."""
    since = summarised_since(number)
    if (
        entry.version != VERSION
        or entry.number != number
        or since != (entry.summary.since if entry.summary else None)
        or entry.generation > number
        or (entry.kind != "epoch" and entry.files)
    ):
        raise CorruptObjectError(
            f"entry {entry.number} of the table's manifest, version {entry.version}, stands at the place of entry "
            f"{number}, or sums up other entries than this one does",
            where=where,
            fix=FIX,
        )
    check_files(entry.files, where=where, first=entry.epoch, last=entry.epoch)
    check_files(entry.change.files, where=where, first=0, last=entry.epoch)


def files_up_to(newest: UnsealedEntry, read: Callable[[int], UnsealedEntry]) -> tuple[str, tuple[TableFile, ...]]:
    """Return schema and files of the table after its newest entry; `read` gives an entry that was checked."""
    schema, files = newest.schema, list[TableFile]()
    change, kept = newest.change, newest.epoch
    while True:
        files += [file for file in reversed(change.files) if file.epoch <= kept]
        kept = kept if change.kept is None else min(kept, change.kept)
        if not change.since:
            return schema, tuple(reversed(files))
        entry = read(change.since)  # less than before: checked with each entry
        schema, change = schema or entry.schema, entry.change


def summarised_since(number: int) -> int | None:
    """Return where the summary of this entry begins; None if it has none.

    >>> summarised_since(33), summarised_since(64), summarised_since(2048)
    (None, 32, 1024)
    """
    span = 1
    while number % (span * SUMMARY_EVERY) == 0:
        span *= SUMMARY_EVERY
    return number - span if span > 1 else None
