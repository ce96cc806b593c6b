"""Sorts rows by key hash; batches of keys are looked up, grouped and written in this order."""

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.int64]

_FIRST_LOOK = 64
"""Number of leading rows that are checked before the rest."""


def hash_order(hashes: Hashes) -> tuple[Rows, Hashes]:
    """Return the rows in the order of their hashes (ties in row order), and the sorted hashes."""
    if is_ascending(hashes):
        return np.arange(len(hashes), dtype=np.int64), hashes
    rows = np.uint64((1 << (len(hashes) - 1).bit_length()) - 1)
    # Integers that pack the upper bits of the hash with the row are sorted several times faster than by an argsort.
    packed = hashes & ~rows
    packed |= np.arange(len(hashes), dtype=np.uint64)
    packed.sort()
    packed &= rows
    order = packed.view(np.int64)
    in_order = hashes.take(order)
    if (in_order[1:] < in_order[:-1]).any():
        # Hashes that differ only in their last bits are rare.
        order = np.argsort(hashes, kind="stable")
        in_order = hashes.take(order)
    return order, in_order


def is_ascending(values: Hashes | Rows) -> bool:
    """Return whether no value is less than the one before it; most values that are not in order are detected early."""
    first = values[:_FIRST_LOOK]
    return bool((first[1:] >= first[:-1]).all() and (values[1:] >= values[:-1]).all())
