"""Memory of a global keyed table, charged to the budget of the process as the table grows and shrinks.

Such a table is never evicted. When it grows, segments of other tables are evicted to make room. If that is not enough,
the table grows beyond the budget: it becomes slower, but accepts every key.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from statebed.errors import StatebedError
from statebed.format import checkpoint_pb2 as pb
from statebed.logs import id_logger
from statebed.state.memory.controller import MemoryController, Purpose

_ENTRY_BYTES = 200
"""Overhead of a key and value in a dictionary, beside their bytes."""
_UNPACKED = 8
"""Approximate ratio of memory to file size while a file is read: its bytes, its rows, and their keys and values."""
_STEP_BYTES = 16 << 10
"""Granularity of charges; to make room for every single key would be too slow."""
_logger = id_logger(__name__)


def entry_bytes(key: bytes, value: bytes | None) -> int:
    """Return the memory that a key and its value take; 0 if the value is None."""
    return 0 if value is None else len(key) + len(value) + _ENTRY_BYTES


def contents_bytes(values: Mapping[bytes, bytes]) -> int:
    """Return the memory that these keys and values take."""
    return sum(map(len, values)) + sum(map(len, values.values())) + _ENTRY_BYTES * len(values)


class HeldBytes:
    """Memory of one table, charged in whole steps. Used only by the thread that writes the table."""

    def __init__(self, memory: MemoryController, owner: str) -> None:
        self.nbytes = 0
        self._memory = memory
        self._owner = owner
        self._charged = memory.charge(owner, Purpose.SEGMENTS, 0)
        self._step = min(_STEP_BYTES, memory.segment_bytes)
        self._released = False

    def change(self, nbytes: int) -> None:
        """Charge `nbytes` that are about to be added, or release them if negative."""
        held = self.nbytes + nbytes
        charged = self._charged.nbytes
        if held > charged or held <= charged - self._step:
            self._charge(-(-held // self._step) * self._step)
        self.nbytes = held

    @contextmanager
    def reading(self, files: Iterable[pb.FileEntry], *, compacting: bool = False) -> Iterator[None]:
        """Charge the memory of reading and decoding files, beside what the table itself holds."""
        nbytes = _UNPACKED * sum(int(file.size) for file in files)
        with self._memory.charge(self._owner, Purpose.MERGES if compacting else Purpose.RESTORES, nbytes):
            yield

    def release(self) -> None:
        """Release the charge of a table that is no longer used; further reads from it are not charged."""
        self._released = True
        self._charged.release()

    def _charge(self, nbytes: int) -> None:
        if self._released:
            return
        try:
            self._charged.resize(nbytes)
        except StatebedError as error:
            self._charged.set(nbytes)
            _logger.warning("could not make room for %s, which grows beyond the memory budget: %s", self._owner, error)
