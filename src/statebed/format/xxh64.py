"""XXH64 of many values at once, in numpy, each with a seed of its own.

Loops run over positions inside values, never over rows. Arrays are changed in place where they can be: fresh ones cost
as much as the arithmetic. Callers hand over as many rows as the processor's cache holds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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
_WORDS_OF_STRIPE = np.arange(0, _STRIPE, _WORD, dtype=np.int64)[:, np.newaxis]
_LANE_SEEDS = np.array([[0x60EA27EEADC0B5D6], [0xC2B2AE3D27D4EB4F], [0], [0x61C8864E7A143579]], dtype=np.uint64)
"""P1 + P2, P2, 0, -P1."""


@dataclass(frozen=True)
class Text:
    """Some bytes for each row, read in words of eight."""

    data: Hashes
    starts: Places
    lengths: Places
    """Of each row; or one number, when all are equally long and equally far from each other."""

    @classmethod
    def of(cls, data: npt.NDArray[np.uint8], starts: Places, lengths: Places) -> "Text":
        """Rows data[start : start + length]; if they are equally long, they are equally far from each other."""
        # Zeros behind the last byte: a word may reach over it.
        padded = np.zeros(len(data) // _WORD + 2, dtype="<u8")
        padded.view(np.uint8)[: len(data)] = data
        return cls(padded, starts, lengths[:1] if (lengths == lengths[0]).all() else lengths)

    def some(self, rows: Places | slice) -> "Text":
        return Text(self.data, self.starts[rows], self.lengths[rows])

    def words(self, place: Places) -> Hashes:
        """A fresh array of the words at a place inside each row; one place for all rows, or one for each."""
        if len(self.lengths) < len(self.starts):
            return self._evenly(1, int(place[0])).reshape(-1)
        return self._gathered(self.starts + place)

    def stripes(self, number: int) -> Hashes:
        """A fresh array of the four words of a stripe of each row."""
        if len(self.lengths) < len(self.starts):
            return self._evenly(len(_WORDS_OF_STRIPE), number * _STRIPE)
        return self._gathered(self.starts + (number * _STRIPE + _WORDS_OF_STRIPE))

    def _evenly(self, count: int, place: int) -> Hashes:
        """Neighbouring words, when all rows are equally long."""
        step = int(self.starts[1] - self.starts[0])
        shape, strides = (count, len(self.starts)), (_WORD, step)
        first = int(self.starts[0]) + place
        return np.ndarray(shape, dtype="<u8", buffer=self.data, offset=first, strides=strides).copy()

    def _gathered(self, at: Places) -> Hashes:
        """The words at these bytes. Reading two aligned words for each is faster than one that is not."""
        shift = (at & (_WORD - 1)).astype(np.uint64)
        shift <<= np.uint64(3)
        at >>= 3
        words: Hashes = self.data.take(at)
        words >>= shift
        at += 1
        upper = self.data.take(at)
        # In two steps, because a shift by 64 is none.
        upper <<= np.uint64(1)
        upper <<= np.uint64(63) - shift
        words |= upper
        return words


def hash_halves(values: Hashes, seeds: Hashes) -> Hashes:
    """Values of four bytes each; they are overwritten."""
    hashes = seeds + (_P5 + np.uint64(_HALF))
    _mix_half(hashes, values)
    return _finished(hashes)


def hash_words(values: Hashes, seeds: Hashes) -> Hashes:
    """Values of eight bytes each; they are overwritten."""
    hashes = seeds + (_P5 + np.uint64(_WORD))
    _mix_word(hashes, values)
    return _finished(hashes)


def hash_text(text: Text, seeds: Hashes) -> Hashes:
    """Values of any number of bytes."""
    lengths = text.lengths
    hashes = seeds + _P5
    stripes = lengths // _STRIPE
    if stripes.any():
        if stripes.min() == stripes.max():
            hashes = _stripes(text, stripes, seeds)
        else:
            # Longest first, so that the rows that still have a stripe are always the first ones.
            rows = np.argsort(-lengths)[: np.count_nonzero(stripes)]
            hashes[rows] = _stripes(text.some(rows), stripes[rows], seeds[rows])
    hashes += lengths.astype(np.uint64)
    rest = lengths % _STRIPE
    place = lengths - rest
    while (whole := rest >= _WORD).any():
        _mix_where(whole, _mix_word, hashes, text.words(place))
        place = place + _WORD * whole
        rest = rest - _WORD * whole
    if rest.any():
        _mix_tail(hashes, text.words(place), rest)
    return _finished(hashes)


def hash_packed(words: Sequence[Hashes], seeds: Hashes) -> Hashes:
    """Values of fewer than forty bytes: the lowest byte of their first word is their length, the bytes follow, and
    zeros. What comes out where that byte is 255 is arbitrary.
    """
    lengths = words[0] & _LOWEST_BYTE
    lengths *= lengths != _LOWEST_BYTE
    if (lengths == lengths[0]).all():
        lengths = lengths[:1]
    longest = int(lengths.max())
    hashes = seeds + _P5
    in_stripes = lengths >= _STRIPE
    if longest >= _STRIPE:
        lanes = seeds + _LANE_SEEDS
        for number, lane in enumerate(lanes):
            _mix_lane(lane, _unpacked(words, number))
        merged = _merged_lanes(lanes)
        merged ^= hashes
        merged *= in_stripes.astype(np.uint64)
        hashes ^= merged
    hashes += lengths
    for number in range(min(longest, _STRIPE - 1) // _WORD):
        whole = lengths >= _WORD * (number + 1)
        whole &= ~in_stripes
        _mix_where(whole, _mix_word, hashes, _unpacked(words, number))
    rest = lengths % _WORD
    if rest.any():
        _mix_tail(hashes, _last_words(words, lengths // _WORD), rest)
    return _finished(hashes)


def _unpacked(words: Sequence[Hashes], number: int) -> Hashes:
    """A fresh array of a word of the bytes alone."""
    word = words[number] >> np.uint64(8)
    if number + 1 < len(words):
        word |= words[number + 1] << np.uint64(56)
    return word


def _last_words(words: Sequence[Hashes], numbers: Hashes) -> Hashes:
    """A fresh array of the words of these numbers; one for all rows, or one for each."""
    if len(numbers) == 1:
        return _unpacked(words, int(numbers[0]))
    last = np.zeros_like(words[0])
    for number in range(int(numbers.max()) + 1):
        word = _unpacked(words, number)
        word *= (numbers == number).astype(np.uint64)
        last |= word
    return last


def _mix_tail(hashes: Hashes, tail: Hashes, rest: npt.NDArray[np.integer]) -> None:
    """Mix the bytes behind the last whole word, fewer than eight; `tail` is overwritten."""
    whole = rest >= _HALF
    if whole.any():
        _mix_where(whole, _mix_half, hashes, tail & _LOWER_HALF)
        tail >>= whole.astype(np.uint64) * np.uint64(8 * _HALF)
    rest = rest % _HALF
    for left in range(int(rest.max())):
        _mix_where(rest > left, _mix_byte, hashes, tail & _LOWEST_BYTE)
        tail >>= np.uint64(8)


def _stripes(text: Text, stripes: Places, seeds: Hashes) -> Hashes:
    """The 32-byte stripes of values that have at least one, those with the most first."""
    lanes = seeds + _LANE_SEEDS
    fewest = int(stripes.min())
    for number in range(int(stripes.max())):
        rows, active = text, lanes
        if number >= fewest:
            active = lanes[:, : np.count_nonzero(stripes > number)]
            rows = text.some(slice(0, active.shape[1]))
        _mix_lane(active, rows.stripes(number))
    return _merged_lanes(lanes)


def _mix_lane(lanes: Hashes, words: Hashes) -> None:
    words *= _P2
    lanes += words
    _rotate(lanes, 31)
    lanes *= _P1


def _merged_lanes(lanes: Hashes) -> Hashes:
    """What the four lanes give; they are overwritten."""
    merged: Hashes = np.zeros_like(lanes[0])
    for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True):
        rotated = lane.copy()
        _rotate(rotated, bits)
        merged += rotated
    _scramble(lanes)
    for lane in lanes:
        merged ^= lane
        merged *= _P1
        merged += _P4
    return merged


def _mix_where(
    rows: npt.NDArray[np.bool_], mix: Callable[[Hashes, Hashes], None], hashes: Hashes, words: Hashes
) -> None:
    """Mix words into the hashes of some rows; `rows` is one answer for all, or one for each."""
    if rows.all():
        mix(hashes, words)
    elif rows.any():
        mixed = hashes.copy()
        mix(mixed, words)
        # What changed, times one or zero: several times faster than a copy through a mask.
        mixed ^= hashes
        mixed *= rows.astype(np.uint64)
        hashes ^= mixed


def _mix_word(hashes: Hashes, words: Hashes) -> None:
    _scramble(words)
    hashes ^= words
    _rotate(hashes, 27)
    hashes *= _P1
    hashes += _P4


def _mix_half(hashes: Hashes, halves: Hashes) -> None:
    halves *= _P1
    hashes ^= halves
    _rotate(hashes, 23)
    hashes *= _P2
    hashes += _P3


def _mix_byte(hashes: Hashes, lowest: Hashes) -> None:
    lowest *= _P5
    hashes ^= lowest
    _rotate(hashes, 11)
    hashes *= _P1


def _scramble(words: Hashes) -> None:
    words *= _P2
    _rotate(words, 31)
    words *= _P1


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
