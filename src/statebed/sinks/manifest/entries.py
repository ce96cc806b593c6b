"""Entries and pages of a table's manifest, version 2, and their names.

    _statebed/{number}.json                       an entry: 12 digits, from 1 without gaps, created by put-if-absent
    _statebed/pages/{number}.{digest}.json        a page: files of older entries, or other pages; `number` of its entry

Both are sealed JSON. An entry with `pages` is a *base*: its pages list all files that were visible before it. Every
other entry refers to the base that it builds on. The table consists of the files of the base's pages, then those of the
base itself, then those of the entries after it.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from statebed.errors import CorruptObjectError, InputError
from statebed.format.names import EPOCH_DIGITS
from statebed.storage.paths import check_path

FOLDER = "_statebed"
PAGES_FOLDER = f"{FOLDER}/pages"
EPOCH_FOLDER = "epoch="
VERSION = 2
FIX = "restore it from a backup, or give the sink another path, where it starts empty"

Number = Annotated[int, Meta(ge=0, lt=10**EPOCH_DIGITS)]
Count = Annotated[int, Meta(ge=0, le=2**62)]
Crc32c = Annotated[int, Meta(ge=0, lt=2**32)]
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]


class TableFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A visible file of the table."""

    path: str
    epoch: Number
    size: Count
    rows: Count
    crc32c: Crc32c


class PageReference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Reference to a page, with a summary of its contents."""

    number: Number
    """Number of the entry that introduced the page."""
    digest: Digest
    size: Count
    crc32c: Crc32c
    level: Annotated[int, Meta(ge=0, lt=16)]
    """0 if the page lists files; otherwise it lists pages of the next lower level."""
    files: Count
    """Number of files in the page and the pages below it."""
    first: Number
    """Oldest epoch of the page's files."""
    last: Number
    """Newest epoch of the page's files."""

    @property
    def path(self) -> str:
        return f"{PAGES_FOLDER}/{self.number:0{EPOCH_DIGITS}d}.{self.digest}.json"


class Page(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Files of older entries, in order, or references to pages that list them."""

    version: int
    level: int
    files: tuple[TableFile, ...] = ()
    pages: tuple[PageReference, ...] = ()


class EntryHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fields that entries of all versions have."""

    version: int
    number: Number
    kind: Literal["open", "epoch", "rollback"]
    owner: str
    """Job and sink that the table belongs to."""
    run: Number
    epoch: Number
    """Newest epoch that the table has."""
    nonce: str


class Entry(EntryHeader, frozen=True, omit_defaults=True):
    """An entry of the log."""

    base: Number
    """Number of the base that this entry builds on; its own number if it is a base."""
    generation: Number = 0
    """Generation of the files that this entry adds, part of their names: 0 before the first rollback. Each rollback
    sets a greater one, which is at least its own number.
    """
    schema: str = ""
    """Base64 of the Arrow IPC schema; in `open` entries and bases."""
    files: tuple[TableFile, ...] = ()
    """Files that this entry makes visible."""
    pages: tuple[PageReference, ...] | None = None
    """All files that were visible before this entry and stay visible; set in a base only."""


def entry_path(number: int) -> str:
    return f"{FOLDER}/{number:0{EPOCH_DIGITS}d}.json"


def entry_number(path: str) -> int | None:
    """Return the number of the entry at `path`, or None if the object is not an entry."""
    stem = path.removeprefix(f"{FOLDER}/").removesuffix(".json")
    return int(stem) if len(stem) == EPOCH_DIGITS and stem.isascii() and stem.isdigit() else None


def page_number(path: str) -> int | None:
    """Return the number of the entry that introduced the page at `path`, or None if the object is not a page."""
    stem = path.removeprefix(f"{PAGES_FOLDER}/").partition(".")[0]
    return int(stem) if len(stem) == EPOCH_DIGITS and stem.isascii() and stem.isdigit() else None


def epoch_folder(epoch: int) -> str:
    return f"{EPOCH_FOLDER}{epoch:0{EPOCH_DIGITS}d}"


def check_entry(entry: Entry, number: int, *, where: str) -> None:
    """Raise CorruptObjectError if the entry is not `number`, or if its fields contradict each other."""
    if entry.number != number:
        raise CorruptObjectError(
            f"the object of entry {number} of the table's manifest holds entry {entry.number}", where=where, fix=FIX
        )
    right_base = entry.base == number if entry.pages is not None else 0 < entry.base < number
    if not right_base or (entry.kind == "rollback" and entry.pages is None):
        raise CorruptObjectError(
            f"entry {number} of the table's manifest refers to {entry.base} as its base", where=where, fix=FIX
        )
    check_files(entry.files, where=where, first=entry.epoch, last=entry.epoch)


def check_files(files: tuple[TableFile, ...], *, where: str, first: int, last: int) -> None:
    """Raise CorruptObjectError for files of epochs outside `first` to `last`, out of order, or outside their epoch's
    folder.
    """
    epoch = first
    for file in files:
        if not epoch <= file.epoch <= last or not _is_data_path(file.path, file.epoch):
            raise CorruptObjectError(
                f"the table's manifest lists {file.path!r} as a file of epoch {file.epoch} "
                f"among those of epochs {first} to {last}",
                where=where,
                fix=FIX,
            )
        epoch = file.epoch


def _is_data_path(path: str, epoch: int) -> bool:
    try:
        return check_path(path).rpartition("/")[0] == epoch_folder(epoch)
    except InputError:
        return False
