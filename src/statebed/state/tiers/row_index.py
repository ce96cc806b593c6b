"""Lookup by hash in the rows of a segment in memory, without scanning all of them.

Rows of a time-keyed table are sorted by bin and then by hash, so that a range of times is a slice. The index holds the
row numbers in the order of the hashes, and a `HashIndex` over these. It is built once reads by hash have scanned as
many rows as building it costs, and only if memory is free. Without it, rows are found by scanning.
"""

import threading

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.columns import uint64_values
from statebed.arrays.key_hash import Hashes
from statebed.arrays.mutable import Rows
from statebed.format.ranges import in_range
from statebed.format.schema import KEY_HASH
from statebed.state.memory.controller import MemoryController, Purpose, Reservation, SpillOffer
from statebed.state.tiers.hash_index import HashIndex
from statebed.state.tiers.selection import Selection

SMALL_SEGMENT = 1 << 14
"""Segments with fewer rows are scanned, which is as fast."""
WORTH_AN_INDEX = 6
"""Number of full scans that take as long as building the index."""
ROWS_PER_HASH = 4
"""Scanning is faster if there are fewer rows than this per wanted hash, or per row found."""
BUILDING_BYTES = 32
"""Bytes per row while the index is built: the hash (twice if rows are in several chunks), the order, memory for
sorting, the row number, and the directory.
"""


class RowIndex:
    """Finds the rows of a table that have given hashes."""

    def __init__(self, table: pa.Table) -> None:
        column = table[KEY_HASH]
        hashes, own = uint64_values(column), column.num_chunks > 1
        self._numbers: npt.NDArray[np.int32] | None = None
        """Row numbers in the order of the hashes, or None if the rows are in that order."""
        if bool((hashes[1:] < hashes[:-1]).any()):
            # A stable sort exploits that each bin is sorted already.
            order = np.argsort(hashes, kind="stable")
            self._numbers, hashes, own = order.astype(np.int32), hashes.take(order), True
        self._index = HashIndex.built(hashes)
        numbers = 0 if self._numbers is None else self._numbers.nbytes
        self.nbytes = self._index.held_bytes + numbers + (hashes.nbytes if own else 0)

    def find(self, wanted: Hashes, *, max_rows: int) -> Rows | None:
        """Return the rows with one of the wanted hashes (ascending), in order, or None if there are more than
        `max_rows`.
        """
        starts, ends = self._index.spans(wanted)
        counts = ends - starts
        before = np.cumsum(counts)
        count = int(before[-1]) if len(before) else 0
        if count > max_rows:
            return None
        at = np.arange(count, dtype=np.int64)
        at += np.repeat(ends - before, counts)
        return at if self._numbers is None else np.sort(self._numbers.take(at)).astype(np.int64)


class IndexedRows:
    """Rows in memory, and their index if it pays. Thread-safe."""

    def __init__(self, table: pa.Table, memory: MemoryController, *, owner: str, offer: SpillOffer) -> None:
        """Wrap rows in memory. `offer` is their offer for eviction, which includes the index."""
        self.table = table
        self._memory = memory
        self._owner = owner
        self._offer = offer
        self._lock = threading.Lock()
        self._scans = 0
        self._index: RowIndex | None = None
        self._charge: Reservation | None = None
        self._building = False
        self._released = False

    @property
    def index_bytes(self) -> int:
        index = self._index
        return 0 if index is None else index.nbytes

    def read(self, selection: Selection) -> pa.Table:
        """Return the same rows as `Selection.apply`, through the index if that is faster."""
        rows = None if selection.hashes is None else self._found(selection, selection.hashes)
        return selection.apply(self.table) if rows is None else selection.apply_to(self.table, rows)

    def release(self) -> None:
        """Release the index when the rows leave memory."""
        with self._lock:
            self._released = True
            charge, self._charge, self._index = self._charge, None, None
        if charge is not None:
            charge.release()

    def _found(self, selection: Selection, wanted: Hashes) -> Rows | None:
        """Return the rows with wanted hashes, or None if all rows have to be scanned."""
        count = self.table.num_rows
        if count < SMALL_SEGMENT or len(wanted) * ROWS_PER_HASH > count:
            return None
        index = self._index or self._built()
        if index is None:
            return None
        owned = wanted if selection.owned is None else wanted[in_range(wanted, selection.owned)]
        return index.find(owned, max_rows=count // ROWS_PER_HASH)

    def _built(self) -> RowIndex | None:
        """Return the index, building it if that pays by now and memory is free. Return None if there is no index."""
        nbytes = BUILDING_BYTES * self.table.num_rows
        with self._lock:
            self._scans += 1
            if self._scans <= WORTH_AN_INDEX or self._building or self._released:
                return self._index
            if self._memory.used + nbytes > self._memory.low_bytes:
                return None
            self._building = True
        charge = self._memory.charge(self._owner, Purpose.INDEXES, nbytes)
        try:
            index = RowIndex(self.table)
        except BaseException:
            charge.release()
            raise
        charge.set(index.nbytes)
        with self._lock:
            late = self._released
            if not late:
                self._index, self._charge = index, charge
                self._memory.resize(self._offer, self._offer.nbytes + index.nbytes)
        if late:
            charge.release()
        return index
