"""Edits of a table's live files: the result of a compaction, applied between epochs.

A compaction reads committed files, which never change, so it can run on any thread while the table is used. Its result
is an edit: the inputs are removed from the list of live files and replaced by their remains and by the outputs. The
outputs stay in the local spill folder until the checkpoint that applies the edit uploads them as data files of its
epoch. An edit is discarded, without any effect, if one of its inputs is no longer live as it was.
"""

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.state.tiers.spill_files import ParquetFile
from statebed.state.upload import Upload

NameOf = Callable[[str], str]
"""Maps the digest of a new data file's bytes to its path."""


def distinct(name_of: NameOf, taken: Iterable[str]) -> NameOf:
    """Make names unique. Equal rows may fill several files, whose bytes and therefore digests are the same."""
    used = set(taken)

    def unused(digest: str) -> str:
        first = name_of(digest)
        path = next(path for copy in itertools.count(1) if (path := _copy(first, copy)) not in used)
        used.add(path)
        return path

    return unused


def _copy(path: str, number: int) -> str:
    return path if number == 1 else names.another(path, number)


ALL_BYTES = 1 << 62
"""Limit that stands for "no bound" on the bytes that are compacted at once."""


@dataclass(frozen=True)
class Edit:
    """Replaces the inputs of a compaction by their remains and its outputs."""

    inputs: tuple[pb.FileEntry, ...]
    """Entries exactly as in the list of live files."""
    outputs: tuple[ParquetFile, ...]
    """Local files; their entries have the final range and level, but local paths."""
    remains: tuple[pb.FileEntry, ...] = ()
    """Parts of inputs that were not compacted: the same files, with a smaller `owned`."""

    def applies_to(self, files: Iterable[pb.FileEntry]) -> bool:
        """Return whether all inputs are still live as they were."""
        live = {_identity(file) for file in files}
        return all(_identity(file) in live for file in self.inputs)

    def applied_to(self, files: Iterable[pb.FileEntry], outputs: Iterable[pb.FileEntry]) -> tuple[pb.FileEntry, ...]:
        """Return the live files after the edit; `outputs` are the entries of its outputs under their final names."""
        gone = {_identity(file) for file in self.inputs}
        return (*(file for file in files if _identity(file) not in gone), *self.remains, *outputs)

    def discard(self) -> None:
        """Remove the outputs, which will not be uploaded."""
        for output in self.outputs:
            output.path.unlink(missing_ok=True)


class EditQueue:
    """Edits waiting for the next checkpoint of a table. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: tuple[Edit, ...] = ()
        self.reading: frozenset[str] = frozenset()
        """Files that the compaction in progress reads."""
        self.applied = 0
        self.discarded = 0
        """Number of compactions discarded because an input was no longer live."""

    def offer(self, edit: Edit) -> None:
        with self._lock:
            self._waiting = (*self._waiting, edit)

    def take(self) -> tuple[Edit, ...]:
        """Take all waiting edits for one checkpoint, which must settle them or put them back."""
        with self._lock:
            taken, self._waiting = self._waiting, ()
            return taken

    def put_back(self, edits: Sequence[Edit]) -> None:
        """Put edits back after their checkpoint failed, for a later one."""
        with self._lock:
            self._waiting = (*edits, *self._waiting)

    def settle(self, edits: Sequence[Edit], *, applied: Sequence[Edit]) -> None:
        """Finish edits that a checkpoint took; remove the outputs of those not applied."""
        with self._lock:
            self.reading = frozenset() if edits else self.reading
            self.applied += len(applied)
            self.discarded += len(edits) - len(applied)
        for edit in edits:
            if not any(edit is other for other in applied):
                edit.discard()


class CompactionJob(Protocol):
    """A compaction that is planned but has not run yet."""

    @property
    def input_bytes(self) -> int:
        """Approximate size of the input files in bytes."""

    def run(self) -> Edit:
        """Run the compaction. Callable on any thread: it reads only immutable files, within the memory budget."""


def staged(file: ParquetFile, name_of: NameOf) -> tuple[pb.FileEntry, Upload]:
    """Return a local file as a data file of an epoch: its entry, and its upload, which removes the local file when
    done.
    """
    entry = pb.FileEntry()
    entry.CopyFrom(file.entry)
    entry.path = name_of(file.digest)

    def remove() -> None:
        file.path.unlink(missing_ok=True)

    return entry, Upload(path=entry.path, size=file.size, content=file.content, on_stored=remove)


def _identity(file: pb.FileEntry) -> bytes:
    return bytes(file.SerializeToString(deterministic=True))
