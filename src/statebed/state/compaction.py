"""What a compaction changes: an edit of a table's live files, made beside the running table and applied between epochs.

A compaction reads files that are committed and never change, so it may run on any thread while the table goes on. Its
result is an edit: inputs leave the list of live files, what remains of them and the outputs take their place. The
outputs lie in the local spill folder until the checkpoint that applies the edit uploads them as data files of its
epoch. An edit one of whose inputs is no longer live as it was is discarded: nothing has happened then.
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
"""The path of a new data file, from the digest of its bytes."""


def distinct(name_of: NameOf, taken: Iterable[str]) -> NameOf:
    """Names that no file has yet: equal rows may fill several files, whose bytes are the same."""
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
"""No bound on what is merged at once."""


@dataclass(frozen=True)
class Edit:
    """Inputs -> what remains of them, and outputs."""

    inputs: tuple[pb.FileEntry, ...]
    """Exactly as they stand in the list of live files."""
    outputs: tuple[ParquetFile, ...]
    """Local files; their entries have the range and level that they get, their paths are local."""
    remains: tuple[pb.FileEntry, ...] = ()
    """The parts of inputs that were not merged: the same files, with a smaller `owned`."""

    def applies_to(self, files: Iterable[pb.FileEntry]) -> bool:
        """Whether all inputs are live as they were."""
        live = {_identity(file) for file in files}
        return all(_identity(file) in live for file in self.inputs)

    def applied_to(self, files: Iterable[pb.FileEntry], outputs: Iterable[pb.FileEntry]) -> tuple[pb.FileEntry, ...]:
        """The live files after the edit, `outputs` being the entries of its outputs under their final names."""
        gone = {_identity(file) for file in self.inputs}
        return (*(file for file in files if _identity(file) not in gone), *self.remains, *outputs)

    def discard(self) -> None:
        """Remove the outputs: they will not be uploaded."""
        for output in self.outputs:
            output.path.unlink(missing_ok=True)


class EditQueue:
    """Edits that wait for the next checkpoint of a table. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: tuple[Edit, ...] = ()
        self.reading: frozenset[str] = frozenset()
        """Files that a compaction under way reads."""
        self.applied = 0
        self.discarded = 0
        """Compactions that came to nothing because an input had left."""

    def offer(self, edit: Edit) -> None:
        with self._lock:
            self._waiting = (*self._waiting, edit)

    def take(self) -> tuple[Edit, ...]:
        """All edits that wait, for one checkpoint; it settles them, or puts them back."""
        with self._lock:
            taken, self._waiting = self._waiting, ()
            return taken

    def put_back(self, edits: Sequence[Edit]) -> None:
        """The checkpoint failed, and another one may take them."""
        with self._lock:
            self._waiting = (*edits, *self._waiting)

    def settle(self, edits: Sequence[Edit], *, applied: Sequence[Edit]) -> None:
        """A checkpoint has dealt with edits that it took; the outputs of those not applied are removed."""
        with self._lock:
            self.reading = frozenset() if edits else self.reading
            self.applied += len(applied)
            self.discarded += len(edits) - len(applied)
        for edit in edits:
            if not any(edit is one for one in applied):
                edit.discard()


class CompactionJob(Protocol):
    """Work that was planned and not done yet."""

    @property
    def input_bytes(self) -> int:
        """Bytes of the files that it reads, about."""

    def run(self) -> Edit:
        """Merge. On any thread; reads immutable files alone, within the memory budget."""


def staged(file: ParquetFile, name_of: NameOf) -> tuple[pb.FileEntry, Upload]:
    """A local file as a data file of an epoch: its entry, and its upload, after which the local file leaves."""
    entry = pb.FileEntry()
    entry.CopyFrom(file.entry)
    entry.path = name_of(file.digest)

    def remove() -> None:
        file.path.unlink(missing_ok=True)

    return entry, Upload(path=entry.path, size=file.size, content=file.content, on_stored=remove)


def _identity(file: pb.FileEntry) -> bytes:
    return bytes(file.SerializeToString(deterministic=True))
