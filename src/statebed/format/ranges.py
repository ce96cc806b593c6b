"""Ownership of the 64-bit key-hash space: contiguous ranges, one per subtask.

`subtask = ((hash >>> 32) * parallelism) >>> 32` over unsigned hashes, so the JVM and numpy route alike with one
multiplication, and each subtask owns one range. Both ends of a range are included: the whole space is (0, 2**64 - 1).
"""

import numpy as np
import numpy.typing as npt

from statebed.errors import InputError
from statebed.format.checkpoint_pb2 import HashRange

MAX_PARALLELISM = 1 << 16
WHOLE_SPACE = HashRange(first=0, last=(1 << 64) - 1)


def check_parallelism(parallelism: int) -> int:
    if not 1 <= parallelism <= MAX_PARALLELISM:
        raise InputError(
            f"the parallelism must be from 1 to {MAX_PARALLELISM}, got {parallelism}",
            fix="twice the number of cores is a good start",
        )
    return parallelism


def owned_range(subtask_index: int, parallelism: int) -> HashRange:
    """Return the range of hashes that a subtask owns."""
    if not 0 <= subtask_index < check_parallelism(parallelism):
        raise InputError(
            f"the index of a subtask must be from 0 to {parallelism - 1}, got {subtask_index}",
            fix="pass an index below the parallelism",
        )
    return HashRange(
        first=_first_high_word(subtask_index, parallelism) << 32,
        last=(_first_high_word(subtask_index + 1, parallelism) << 32) - 1,
    )


def subtask_of(hashes: npt.NDArray[np.uint64], parallelism: int) -> npt.NDArray[np.uint16]:
    """Return the owner of each hash, as 16-bit numbers, which numpy sorts by radix."""
    high = hashes >> np.uint64(32)
    return ((high * np.uint64(check_parallelism(parallelism))) >> np.uint64(32)).astype(np.uint16)


def overlaps(first_range: HashRange, other: HashRange) -> bool:
    return first_range.first <= other.last and other.first <= first_range.last


def intersection(first_range: HashRange, other: HashRange) -> HashRange | None:
    """Return the intersection of two ranges, or None if it is empty."""
    if not overlaps(first_range, other):
        return None
    return HashRange(first=max(first_range.first, other.first), last=min(first_range.last, other.last))


def _first_high_word(subtask_index: int, parallelism: int) -> int:
    return -(-(subtask_index << 32) // parallelism)


def in_range(hashes: npt.NDArray[np.uint64], owned: HashRange) -> npt.NDArray[np.bool_]:
    """Return which hashes are in the range."""
    return (hashes >= np.uint64(owned.first)) & (hashes <= np.uint64(owned.last))
