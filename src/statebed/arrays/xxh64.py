"""XXH64 of many values at once, in numpy, each with its own seed.

Loops run over positions inside values, not over rows, except where only a few very long values are left. Arrays are
changed in place where possible: allocating new ones costs as much as the arithmetic. Callers pass as many rows as fit
into the processor's cache. There is one seed per row, or one for all; the same holds for hashes of empty values.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from statebed.arrays.compiled import loops_for

Hashes = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
_STRIPE = 32
_WORD = 8
_HALF = 4
_LOWER_HALF = np.uint64(0xFFFFFFFF)
_LOWEST_BYTE = np.uint64(0xFF)
TO_HIGHEST_BYTE = np.uint64(56)
_FEW_ROWS = 8
"""Up to this number of rows, a loop over each of them is faster than passes of numpy over all."""
_STRIPES_AT_ONCE = 1 << 14
_ALL_BITS = (1 << 64) - 1
_WORDS_OF_STRIPE = np.arange(0, _STRIPE, _WORD, dtype=np.int64)[:, np.newaxis]
_LANE_SEEDS = np.array([[0x60EA27EEADC0B5D6], [0xC2B2AE3D27D4EB4F], [0], [0x61C8864E7A143579]], dtype=np.uint64)
"""P1 + P2, P2, 0, -P1."""


@dataclass(frozen=True)
class Text:
    """Bytes of each row, read in words of eight."""

    data: Hashes
    starts: Places
    lengths: Places
    """Length of each row, or one number if all rows have the same length and distance."""

    @classmethod
    def of(cls, data: npt.NDArray[np.uint8], starts: Places, lengths: Places) -> "Text":
        """Return the rows data[start : start + length]; rows of equal length must have equal distances."""
        # Padded with zeros, because a word may reach beyond the last byte.
        padded = np.zeros(len(data) // _WORD + 2, dtype="<u8")
        padded.view(np.uint8)[: len(data)] = data
        return cls(padded, starts, lengths[:1] if (lengths == lengths[0]).all() else lengths)

    def take(self, rows: Places | slice) -> "Text":
        return Text(self.data, self.starts[rows], self.lengths[rows])

    def words(self, place: Places) -> Hashes:
        """Return a new array of the words at a position inside each row; one position for all rows, or one per row."""
        if len(self.lengths) < len(self.starts):
            return self._evenly(1, int(place[0])).reshape(-1)
        return self._gathered(self.starts + place)

    def stripes(self, number: int) -> Hashes:
        """Return a new array of the four words of a stripe of each row."""
        if len(self.lengths) < len(self.starts):
            return self._evenly(len(_WORDS_OF_STRIPE), number * _STRIPE)
        return self._gathered(self.starts + (number * _STRIPE + _WORDS_OF_STRIPE))

    def stripes_of(self, row: int, first: int, last: int) -> Hashes:
        """Return the words of the stripes from `first` up to `last` of one row, four per stripe."""
        start = int(self.starts[row])
        part = self.data.view(np.uint8)[start + first * _STRIPE : start + last * _STRIPE]
        return part.copy().view("<u8").reshape(-1, len(_WORDS_OF_STRIPE))

    def _evenly(self, count: int, place: int) -> Hashes:
        """Return adjacent words of rows of equal length."""
        step = int(self.starts[1] - self.starts[0])
        shape, strides = (count, len(self.starts)), (_WORD, step)
        first = int(self.starts[0]) + place
        return np.ndarray(shape, dtype="<u8", buffer=self.data, offset=first, strides=strides).copy()

    def _gathered(self, at: Places) -> Hashes:
        """Return the words at these bytes. Reading two aligned words for each is faster than an unaligned one."""
        shift = (at & (_WORD - 1)).astype(np.uint64)
        shift <<= np.uint64(3)
        at >>= 3
        words: Hashes = self.data.take(at)
        words >>= shift
        at += 1
        upper = self.data.take(at)
        # In two steps, because a shift by 64 has no effect.
        upper <<= np.uint64(1)
        upper <<= np.uint64(63) - shift
        words |= upper
        return words


def hash_halves(values: Hashes, seeds: Hashes) -> Hashes:
    """Hash values of four bytes each."""
    return _finished(_mixed_half(seeds + (_P5 + np.uint64(_HALF)), values))


def hash_words(values: Hashes, seeds: Hashes) -> Hashes:
    """Hash values of eight bytes each."""
    if (loops := loops_for(len(values))) is not None:
        hashes: Hashes = loops.hash_words(values, seeds)
        return hashes
    return _finished(_mixed_word(seeds + (_P5 + np.uint64(_WORD)), values))


def hash_text(text: Text, seeds: Hashes) -> Hashes:
    """Hash values of any length."""
    # Passes over a single long value take as long as those over many values.
    passes = int(text.lengths.max(initial=0)) // _STRIPE
    if (loops := loops_for(max(len(text.starts), passes))) is not None:
        compiled: Hashes = loops.hash_text(text.data, text.starts, text.lengths, seeds)
        return compiled
    lengths = text.lengths
    seeds = np.broadcast_to(seeds, text.starts.shape)
    hashes = seeds + _P5
    stripes = lengths // _STRIPE
    if stripes.any():
        if stripes.min() == stripes.max():
            hashes = _stripes(text, stripes, seeds)
        else:
            # Longest first, so that the rows that still have a stripe are always a prefix.
            rows = np.argsort(-lengths)[: np.count_nonzero(stripes)]
            hashes[rows] = _stripes(text.take(rows), stripes[rows], seeds[rows])
    hashes += lengths.astype(np.uint64)
    rest = lengths % _STRIPE
    place = lengths - rest
    while (whole := rest >= _WORD).any():
        hashes = _mixed_where(whole, _mixed_word, hashes, text.words(place))
        place = place + _WORD * whole
        rest = rest - _WORD * whole
    if rest.any():
        hashes = _mixed_tail(hashes, text.words(place), rest)
    return _finished(hashes)


def hash_packed(words: Sequence[Hashes], seeds: Hashes) -> Hashes:
    """Hash values of fewer than forty bytes, padded with zeros; the highest byte of their last word is their length.

    The result is arbitrary where the length is 255.
    """
    if len(words) * _WORD <= _STRIPE and (loops := loops_for(len(words[0]))) is not None:
        compiled: Hashes = loops.hash_packed(tuple(words), seeds)
        return compiled
    lengths = words[-1] >> TO_HIGHEST_BYTE
    if (lengths == lengths[0]).all():
        lengths = lengths[:1]
    lengths *= lengths != _LOWEST_BYTE
    longest = int(lengths.max())
    hashes = seeds + _P5
    in_stripes = lengths >= _STRIPE
    if longest >= _STRIPE:
        lanes = np.broadcast_to(seeds, words[0].shape) + _LANE_SEEDS
        for lane, word in zip(lanes, words, strict=False):
            _mix_lane(lane, word)
        merged = _merged_lanes(lanes)
        merged ^= hashes
        merged *= in_stripes.astype(np.uint64)
        merged ^= hashes
        hashes = merged
    hashes = hashes + lengths
    for number in range(min(longest, _STRIPE - 1) // _WORD):
        whole = lengths >= _WORD * (number + 1)
        whole &= ~in_stripes
        hashes = _mixed_where(whole, _mixed_word, hashes, words[number])
    rest = lengths % _WORD
    if rest.any():
        hashes = _mixed_tail(hashes, _last_words(words, lengths // _WORD), rest)
    return _finished(hashes)


def _last_words(words: Sequence[Hashes], numbers: Hashes) -> Hashes:
    """Return the words with these numbers; one number for all rows, or one per row."""
    if len(numbers) == 1:
        return words[int(numbers[0])]
    last = np.zeros_like(words[0])
    for number, word in enumerate(words[: int(numbers.max()) + 1]):
        last |= word * (numbers == number).astype(np.uint64)
    return last


def _mixed_tail(hashes: Hashes, tail: Hashes, rest: npt.NDArray[np.integer]) -> Hashes:
    """Mix in the bytes after the last whole word, fewer than eight."""
    whole = rest >= _HALF
    if whole.any():
        hashes = _mixed_where(whole, _mixed_half, hashes, tail & _LOWER_HALF)
    rest = rest % _HALF
    if rest.any():
        tail = tail >> whole.astype(np.uint64) * np.uint64(8 * _HALF)
    for left in range(int(rest.max())):
        hashes = _mixed_where(rest > left, _mixed_byte, hashes, tail & _LOWEST_BYTE)
        tail >>= np.uint64(8)
    return hashes


def _stripes(text: Text, stripes: Places, seeds: Hashes) -> Hashes:
    """Hash the 32-byte stripes of values that have at least one, those with the most first."""
    lanes = seeds + _LANE_SEEDS
    fewest = int(stripes.min())
    counts = np.broadcast_to(stripes, lanes.shape[1:])
    for number in range(int(stripes.max())):
        rows, active = text, lanes
        if number >= fewest:
            active = lanes[:, : np.count_nonzero(stripes > number)]
            rows = text.take(slice(0, active.shape[1]))
        if active.shape[1] <= _FEW_ROWS:
            for row in range(active.shape[1]):
                lanes[:, row] = _mixed_alone(text, row, lanes[:, row].tolist(), number, int(counts[row]))
            break
        _mix_lane(active, rows.stripes(number))
    return _merged_lanes(lanes)


def _mixed_alone(text: Text, row: int, lanes: list[int], first: int, last: int) -> list[int]:
    """Return the lanes of one row after the stripes from `first` up to `last`."""
    factor, mask = int(_P1), _ALL_BITS
    lane0, lane1, lane2, lane3 = lanes
    for start in range(first, last, _STRIPES_AT_ONCE):
        words = text.stripes_of(row, start, min(start + _STRIPES_AT_ONCE, last)) * _P2
        for word0, word1, word2, word3 in words.tolist():
            lane0, lane1 = (lane0 + word0) & mask, (lane1 + word1) & mask
            lane2, lane3 = (lane2 + word2) & mask, (lane3 + word3) & mask
            lane0 = (lane0 << 31 | lane0 >> 33) * factor & mask
            lane1 = (lane1 << 31 | lane1 >> 33) * factor & mask
            lane2 = (lane2 << 31 | lane2 >> 33) * factor & mask
            lane3 = (lane3 << 31 | lane3 >> 33) * factor & mask
    return [lane0, lane1, lane2, lane3]


def _mix_lane(lanes: Hashes, words: Hashes) -> None:
    lanes += words * _P2
    _rotate(lanes, 31)
    lanes *= _P1


def _merged_lanes(lanes: Hashes) -> Hashes:
    """Combine the four lanes."""
    merged: Hashes = np.zeros_like(lanes[0])
    for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True):
        rotated = lane.copy()
        _rotate(rotated, bits)
        merged += rotated
    for lane in _scrambled(lanes):
        merged ^= lane
        merged *= _P1
        merged += _P4
    return merged


def _mixed_where(
    rows: npt.NDArray[np.bool_], mixed: Callable[[Hashes, Hashes], Hashes], hashes: Hashes, words: Hashes
) -> Hashes:
    """Mix words into the hashes of some rows; `rows` is one flag for all, or one per row."""
    if rows.all():
        return mixed(hashes, words)
    if not rows.any():
        return hashes
    changed = mixed(hashes, words)
    # The change, multiplied by one or zero, is several times faster than a masked copy.
    changed ^= hashes
    changed *= rows.astype(np.uint64)
    changed ^= hashes
    return changed


def _mixed_word(hashes: Hashes, words: Hashes) -> Hashes:
    mixed = _stirred(_scrambled(words), hashes, bits=27, factor=_P1)
    mixed += _P4
    return mixed


def _mixed_half(hashes: Hashes, halves: Hashes) -> Hashes:
    mixed = _stirred(halves * _P1, hashes, bits=23, factor=_P2)
    mixed += _P3
    return mixed


def _mixed_byte(hashes: Hashes, lowest: Hashes) -> Hashes:
    return _stirred(lowest * _P5, hashes, bits=11, factor=_P1)


def _stirred(values: Hashes, hashes: Hashes, *, bits: int, factor: np.uint64) -> Hashes:
    """Combine the values with the hashes; `values` are overwritten."""
    values ^= hashes
    _rotate(values, bits)
    values *= factor
    return values


def _scrambled(words: Hashes) -> Hashes:
    scrambled: Hashes = words * _P2
    _rotate(scrambled, 31)
    scrambled *= _P1
    return scrambled


def _rotate(values: Hashes, bits: int) -> None:
    carried = values >> np.uint64(64 - bits)
    values <<= np.uint64(bits)
    values |= carried


def _finished(hashes: Hashes) -> Hashes:
    hashes ^= hashes >> np.uint64(33)
    hashes *= _P2
    hashes ^= hashes >> np.uint64(29)
    hashes *= _P3
    hashes ^= hashes >> np.uint64(32)
    return hashes
