"""Rows of a segment in memory by hash, found without looking at the others.

Rows of a time-keyed table are sorted by bin and then by hash, so that a range of times is a slice. The index is the
rows in the order of their hashes, by number, and the one index of sorted hashes over these. It is built once reads by
hash have looked at so many rows that building it would have cost no more, and only where there is room for it: without
it rows are found as well, by looking at all of them.
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
from statebed.state.memory.controller import MemoryController, Offer, Purpose, Reservation
from statebed.state.tiers.hash_index import HashIndex
from statebed.state.tiers.selection import Selection

SMALL_SEGMENT = 1 << 14
"""Fewer rows are looked at as fast as they are found."""
WORTH_AN_INDEX = 6
"""So many reads that look at all rows take as long as building the index does."""
ROWS_PER_HASH = 4
"""With fewer rows than this for each wanted hash, or for each row found, looking at all of them is faster."""
BUILDING_BYTES = 32
"""Of each row, while the index is built: its hash, twice where rows are in several chunks; the order, and what sorting
takes; its number; and the directory.
"""


class RowIndex:
    """Where rows with given hashes stand in a table."""

    def __init__(self, table: pa.Table) -> None:
        column = table[KEY_HASH]
        hashes, own = uint64_values(column), column.num_chunks > 1
        self._numbers: npt.NDArray[np.int32] | None = None
        """Of rows in the order of their hashes; None: that is their own."""
        if bool((hashes[1:] < hashes[:-1]).any()):
            # Each bin is in order already, which this sort makes use of.
            order = np.argsort(hashes, kind="stable")
            self._numbers, hashes, own = order.astype(np.int32), hashes.take(order), True
        self._index = HashIndex.built(hashes)
        numbers = 0 if self._numbers is None else self._numbers.nbytes
        self.nbytes = self._index.held_bytes + numbers + (hashes.nbytes if own else 0)

    def find(self, wanted: Hashes, *, most: int) -> Rows | None:
        """The rows with one of the wanted hashes, which ascend, in order; None: they are more than `most`."""
        starts, ends = self._index.spans(wanted)
        counts = ends - starts
        before = np.cumsum(counts)
        found = int(before[-1]) if len(before) else 0
        if found > most:
            return None
        at = np.arange(found, dtype=np.int64)
        at += np.repeat(ends - before, counts)
        return at if self._numbers is None else np.sort(self._numbers.take(at)).astype(np.int64)


class IndexedRows:
    """Rows in memory, and their index where it pays. Thread-safe."""

    def __init__(self, table: pa.Table, memory: MemoryController, *, owner: str, offer: Offer) -> None:
        """`offer`: of the rows; it offers the index with them."""
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
        """As `Selection.apply`, through the index where that is faster."""
        rows = None if selection.hashes is None else self._found(selection, selection.hashes)
        return selection.apply(self.table) if rows is None else selection.apply_to(self.table, rows)

    def release(self) -> None:
        """The rows leave memory, and the index with them."""
        with self._lock:
            self._released = True
            charge, self._charge, self._index = self._charge, None, None
        if charge is not None:
            charge.release()

    def _found(self, selection: Selection, wanted: Hashes) -> Rows | None:
        """Rows with wanted hashes; None: all are to be looked at."""
        count = self.table.num_rows
        if count < SMALL_SEGMENT or len(wanted) * ROWS_PER_HASH > count:
            return None
        index = self._index or self._built()
        if index is None:
            return None
        owned = wanted if selection.owned is None else wanted[in_range(wanted, selection.owned)]
        return index.find(owned, most=count // ROWS_PER_HASH)

    def _built(self) -> RowIndex | None:
        """The index, if it pays by now and there is room for it."""
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
