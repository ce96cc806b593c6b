"""Counter-based random numbers: a column's value is a function of (seed, column, event number) alone.

There is no generator with a position, so any range of events can be generated separately, in any process, with the same
values as in a larger range. The mixing function is splitmix64; everything after it is integer arithmetic, so the bits
do not depend on the machine.
"""

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", dtype=np.uint8)
# 256 is not a multiple of 26: some letters are slightly more frequent, as in text.
_LETTER_OF_BYTE = _LETTERS[np.arange(256) % len(_LETTERS)]


@dataclass(frozen=True)
class Counters:
    """Random draws for a set of event numbers; draws of different `column` names are independent."""

    seed: int
    numbers: Integers

    def bits(self, column: str) -> Numbers:
        """Return 64 random bits per event."""
        key = np.uint64(_mix_scalar(_mix_scalar(self.seed & _MASK) + zlib.crc32(column.encode())))
        return _mix(self.numbers.astype(np.uint64) * np.uint64(_GOLDEN) + key)

    def below(self, column: str, limit: int | Integers) -> Integers:
        """Return an integer from 0 to `limit` - 1 per event; the limit is at most 2^32."""
        high = self.bits(column) >> np.uint64(32)
        scaled: Integers = ((high * np.asarray(limit).astype(np.uint64)) >> np.uint64(32)).astype(np.int64)
        return scaled

    def one_in(self, column: str, ratio: int) -> npt.NDArray[np.bool_]:
        """Return True for one event in `ratio`."""
        chosen: npt.NDArray[np.bool_] = self.below(column, ratio) == 0
        return chosen

    def choice(self, column: str, words: list[str]) -> Any:
        """Return one of `words` per event, as an Arrow string array."""
        return pa.array(words, pa.string()).take(pa.array(self.below(column, len(words))))

    def text(self, column: str, lengths: int | Integers) -> Any:
        """Return `lengths` lower-case letters per event, as an Arrow string array."""
        count = len(self.numbers)
        wanted = np.broadcast_to(np.asarray(lengths, dtype=np.int64), (count,))
        words = (int(wanted.max(initial=0)) + 7) // 8
        steps = np.arange(1, words + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
        grid = _mix(self.bits(column)[:, None] + steps[None, :])
        # The byte order is fixed, so that the letters are the same on every machine.
        random = grid.astype("<u8", copy=False).view(np.uint8).reshape(count, words * 8)
        kept = _LETTER_OF_BYTE[random[np.arange(words * 8)[None, :] < wanted[:, None]]]
        offsets = np.zeros(count + 1, dtype=np.int32)
        np.cumsum(wanted, out=offsets[1:])
        return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(kept))


def _mix(values: Numbers) -> Numbers:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _mix_scalar(value: int) -> int:
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
