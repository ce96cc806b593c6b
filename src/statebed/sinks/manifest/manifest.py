"""Log of entries of one table: reads and appends.

The number of an entry detects conflicts: a writer that did not see the newest entry finds its number taken. Entries
made superfluous by a base are deleted a few at a time, so the number of objects is bounded. A writer that was suspended
could then put an entry where one was deleted, so after each put it looks for newer entries.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Iterator

import msgspec

from statebed.errors import (
    BrokenLogError,
    CorruptObjectError,
    MissingFileError,
    ObjectMissingError,
    OutcomeUnknownError,
    SinkError,
    StatebedError,
)
from statebed.format.sealed_json import decode_json, is_sealed, open_json, seal_json
from statebed.sinks.manifest import version_1
from statebed.sinks.manifest.entries import (
    FIX,
    FOLDER,
    PAGES_FOLDER,
    VERSION,
    Entry,
    PageReference,
    TableFile,
    check_entry,
    entry_number,
    entry_path,
    page_number,
)
from statebed.sinks.manifest.page_tree import PageTree, Root
from statebed.sinks.manifest.table_state import TAIL_ENTRIES, TableState
from statebed.sinks.manifest.version_1 import UnsealedEntry
from statebed.storage import ObjectStore, PutOutcome, create_verified

KEPT_ENTRIES = TAIL_ENTRIES
"""Number of entries before a base that are kept for readers which started before it."""
DELETED_AT_ONCE = 2
"""Number of superfluous entries that one append deletes: more than it adds."""
SWEPT_AT_ONCE = 256
"""Maximum number of superfluous entries and pages that one sweep deletes."""
_PUT_ATTEMPTS = 10
_SPOILED = "check the store, delete this object, and start the job again: it publishes the epoch again"
_READ_ATTEMPTS = 10
"""Number of attempts to read the log while it advances."""


class Manifest:
    """Log of one table; `store` is the table's folder. Two runs of one process may share it."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._pages = PageTree(store)
        self._lock = threading.Lock()
        self._retired: deque[tuple[int, PageReference]] = deque()
        """Pages that a base of this process replaced, with the number of that base."""
        self.state = TableState()

    # ---- reading -----------------------------------------------------------------------------------------------

    def refresh(self) -> TableState:
        """Read what was appended since the last call; only the first call lists the folder."""
        with self._lock:
            return self._refresh()

    def files(self, state: TableState) -> Iterator[TableFile]:
        """Yield the visible files in the order of epochs; raise MissingFileError if the log has advanced too far."""
        yield from self._pages.files(state.pages)
        yield from state.tail

    def pages(self, state: TableState) -> Iterator[PageReference]:
        """Yield references to all pages."""
        return self._pages.references(state.pages)

    def _refresh(self) -> TableState:
        if not self.state.number:
            self.state = self._read_newest()
            return self.state
        while (entry := self._read_if_there(self.state.number + 1)) is not None:
            if isinstance(entry, Entry):
                self.state = self.state.after(entry)
            elif self.state.base:
                raise self._unsealed_after_sealed(entry.number)
            else:
                self.state = self._read_version_1(entry)
        return self.state

    def _numbers(self) -> list[int]:
        """Return the numbers of all entries, ascending."""
        numbers = (entry_number(info.path) for info in self._store.list_level(FOLDER).objects)
        return sorted(number for number in numbers if number)

    def _read_newest(self) -> TableState:
        newest = 0
        for _ in range(_READ_ATTEMPTS):
            numbers = self._numbers()
            if not numbers:
                return TableState()
            moved, newest = numbers[-1] != newest, numbers[-1]
            try:
                return self._read_up_to(newest)
            except (BrokenLogError, MissingFileError):
                if not moved:
                    raise
        return self._read_up_to(newest)

    def _read_up_to(self, newest: int) -> TableState:
        entry = self._read(newest)
        if isinstance(entry, UnsealedEntry):
            return self._read_version_1(entry)
        if newest - entry.base >= TAIL_ENTRIES:
            raise CorruptObjectError(
                f"entry {newest} of the table's manifest refers to {entry.base} as its base",
                where=f"{self._store.url}/{entry_path(newest)}",
                fix=FIX,
            )
        entries = [self._read_sealed(number) for number in range(entry.base, newest)] + [entry]
        state = TableState()
        for later in entries:
            if later.base != entry.base or (later.number == entry.base) != (later.pages is not None):
                raise CorruptObjectError(
                    f"entries {later.number} and {newest} of the table's manifest refer to different bases",
                    where=f"{self._store.url}/{entry_path(later.number)}",
                    fix=FIX,
                )
            state = state.after(later)
        return state

    def _read_version_1(self, newest: UnsealedEntry) -> TableState:
        number = newest.number
        if number > 1 and self._is_sealed(number - 1):
            raise self._unsealed_after_sealed(number)
        schema, files = version_1.files_up_to(newest, self._read_unsealed)
        return TableState(
            number=number,
            owner=newest.owner,
            run=newest.run,
            epoch=newest.epoch,
            generation=number if newest.kind == "rollback" else newest.generation,
            schema=schema,
            tail=files,
        )

    def _read_sealed(self, number: int) -> Entry:
        entry = self._read(number)
        if isinstance(entry, UnsealedEntry):
            raise self._unsealed_after_sealed(number)
        return entry

    def _read_unsealed(self, number: int) -> UnsealedEntry:
        entry = self._read(number)
        if isinstance(entry, Entry):
            raise self._unsealed_after_sealed(number)
        return entry

    def _is_sealed(self, number: int) -> bool:
        try:
            return is_sealed(self._store.get(entry_path(number)))
        except ObjectMissingError:
            return False

    def _unsealed_after_sealed(self, number: int) -> CorruptObjectError:
        return CorruptObjectError(
            f"the table's manifest has entries with and without a checksum around entry {number}",
            where=f"{self._store.url}/{entry_path(number)}",
            fix=FIX,
        )

    def _read(self, number: int) -> Entry | UnsealedEntry:
        entry = self._read_if_there(number)
        if entry is None:
            raise self._missing(number)
        return entry

    def _missing(self, number: int) -> BrokenLogError:
        where = f"{self._store.url}/{entry_path(number)}"
        return BrokenLogError(f"entry {number} of the table's manifest is missing", where=where, fix=FIX)

    def _read_if_there(self, number: int) -> Entry | UnsealedEntry | None:
        where = f"{self._store.url}/{entry_path(number)}"
        what = f"entry {number} of the table's manifest"
        try:
            data = self._store.get(entry_path(number))
        except ObjectMissingError:
            return None
        if is_sealed(data):
            entry = open_json(Entry, data, version=VERSION, what=what, where=where, fix=FIX)
            check_entry(entry, number, where=where)
            return entry
        unsealed = decode_json(UnsealedEntry, data, what=what, where=where, fix=FIX)
        version_1.check_unsealed(unsealed, number, where=where)
        return unsealed

    # ---- appending ---------------------------------------------------------------------------------------------

    def append(self, entry: Entry, *, to: TableState) -> bool:
        """Put the entry, which was built on the state `to`. Return False if its number is taken; `refresh` then shows
        by what.
        """
        with self._lock:
            entry, replaced = self._with_base(entry, to)
            outcome = self._put(entry_path(entry.number), seal_json(entry))
            if outcome is PutOutcome.EXISTS and self._read(entry.number).nonce != entry.nonce:
                return False
            numbers = self._numbers()
            if numbers and numbers[-1] > entry.number:
                self.state = self._read_newest()
                if entry.number < self.state.base - KEPT_ENTRIES:
                    self._delete(entry_path(entry.number))  # another entry had this number and was deleted since
                return False
            self._check_complete(entry, numbers)
            if self.state.number < entry.number:
                self.state = to.after(entry)
            self._retired.extend((entry.number, page) for page in replaced)
            self._clean(numbers)
            return True

    def _check_complete(self, entry: Entry, numbers: list[int]) -> None:
        """Raise an error if entries are gone that readers need beside this one: the table was deleted under a running
        job. The entry is then removed again, so that the next start finds the table as it was left.
        """
        needed = range(max(min(entry.base, entry.number - 1), 1), entry.number)
        gone = min(set(needed) - set(numbers), default=None)
        if gone is None or self._store.head(entry_path(gone)) is not None:
            return
        self._delete(entry_path(entry.number))
        if any(number < entry.number for number in numbers):
            raise self._missing(gone)
        problem = SinkError(
            "the table no longer exists; it was deleted or moved while the job ran",
            where=self._store.url,
            fix="restore it, then start the job again: the epoch is committed and is published first; without the "
            "table, the start is refused and lists the choices",
        )
        problem.is_of_target = True
        raise problem

    def sweep(self) -> None:
        """Delete superfluous entries and pages of earlier runs, at most `SWEPT_AT_ONCE`."""
        with self._lock, contextlib.suppress(StatebedError):  # retried when the next run opens
            oldest = self.state.base - KEPT_ENTRIES
            for path in [*self._unused_pages(oldest), *map(entry_path, self._numbers_below(oldest))][:SWEPT_AT_ONCE]:
                self._delete(path)

    def _unused_pages(self, oldest: int) -> list[str]:
        used = {page.path for page in self._pages.references(self.state.pages)}
        listed = [info.path for info in self._store.list_level(PAGES_FOLDER).objects]
        return [path for path in listed if path not in used and (page_number(path) or oldest) < oldest]

    def _numbers_below(self, oldest: int) -> list[int]:
        return [number for number in self._numbers() if number < oldest]

    def _with_base(self, entry: Entry, to: TableState) -> tuple[Entry, Root]:
        """Make the entry a base if one is due. Also return the pages it replaces, except those of a rollback: `sweep`
        finds them.
        """
        if entry.kind != "rollback" and not to.needs_base:
            return msgspec.structs.replace(entry, base=to.base), ()
        number = entry.number
        if entry.kind == "rollback":
            kept = self._pages.truncated(to.pages, entry.epoch, number=number)
            tail = tuple(file for file in to.tail if file.epoch <= entry.epoch)
        else:
            kept, tail = to.pages, to.tail
        pages, replaced = self._pages.appended(kept, tail, number=number)
        schema = entry.schema or to.schema
        return msgspec.structs.replace(entry, base=number, pages=pages, schema=schema), replaced

    def _clean(self, numbers: list[int]) -> None:
        oldest = self.state.base - KEPT_ENTRIES
        for number in [number for number in numbers if number < oldest][:DELETED_AT_ONCE]:
            self._delete(entry_path(number))
        while self._retired and self._retired[0][0] < oldest:
            self._delete(self._retired.popleft()[1].path)

    def _delete(self, path: str) -> None:
        with contextlib.suppress(StatebedError):  # retried by later appends and sweeps
            self._store.delete(path)

    def _put(self, path: str, data: bytes) -> PutOutcome:
        for attempt in range(1, _PUT_ATTEMPTS + 1):
            try:
                return create_verified(self._store, path, data, fix=_SPOILED)
            except OutcomeUnknownError:
                if attempt == _PUT_ATTEMPTS:
                    raise
        raise AssertionError
