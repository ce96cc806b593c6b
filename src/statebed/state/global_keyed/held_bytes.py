"""What a global keyed table holds in memory, charged to the budget of the process as it grows and shrinks.

Such a table never leaves memory. When it grows, segments of other tables make room for it; what cannot be moved stays,
and the table grows all the same: it slows down, and takes every key.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from statebed.errors import StatebedError
from statebed.format import checkpoint_pb2 as pb
from statebed.logs import id_logger
from statebed.state.memory.controller import MemoryController, Purpose

_ENTRY_BYTES = 200
"""What a key and a value take in a dictionary beside their bytes."""
_UNPACKED = 8
"""A file, its rows, and their keys and values one by one take about so many times the bytes of the file."""
_STEP_BYTES = 16 << 10
"""So many bytes are charged at once: to ask for room with every key would cost."""
_logger = id_logger(__name__)


def entry_bytes(key: bytes, value: bytes | None) -> int:
    """What a key takes with its value; None: it is not there."""
    return 0 if value is None else len(key) + len(value) + _ENTRY_BYTES


def contents_bytes(values: Mapping[bytes, bytes]) -> int:
    """What all of these keys and values take."""
    return sum(map(len, values)) + sum(map(len, values.values())) + _ENTRY_BYTES * len(values)


class HeldBytes:
    """The bytes of one table, charged in whole steps; for the thread that writes it."""

    def __init__(self, memory: MemoryController, owner: str) -> None:
        self.nbytes = 0
        self._memory = memory
        self._owner = owner
        self._charged = memory.charge(owner, Purpose.SEGMENTS, 0)
        self._step = min(_STEP_BYTES, memory.segment_bytes)
        self._released = False

    def change(self, nbytes: int) -> None:
        """So many bytes are about to come, or, below 0, to leave."""
        held = self.nbytes + nbytes
        charged = self._charged.nbytes
        if held > charged or held <= charged - self._step:
            self._charge(-(-held // self._step) * self._step)
        self.nbytes = held

    @contextmanager
    def reading(self, files: Iterable[pb.FileEntry], *, merging: bool = False) -> Iterator[None]:
        """While files are read and decoded: they are charged, too, beside what the table has before and after."""
        nbytes = _UNPACKED * sum(int(file.size) for file in files)
        with self._memory.charge(self._owner, Purpose.MERGES if merging else Purpose.RESTORES, nbytes):
            yield

    def release(self) -> None:
        """The table is not used any more: what is still read from it is charged to nobody."""
        self._released = True
        self._charged.release()

    def _charge(self, nbytes: int) -> None:
        if self._released:
            return
        try:
            self._charged.resize(nbytes)
        except StatebedError as error:
            self._charged.set(nbytes)
            _logger.warning("no room was made for %s, which grows beyond it: %s", self._owner, error)
