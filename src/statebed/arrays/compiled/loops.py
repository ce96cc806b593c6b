"""Loops compiled by numba, which this module imports. Code is compiled on the first call, and cached on disk.

All numbers are unsigned words, because numba turns such a word and a plain integer into a float.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

Words = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Values = npt.NDArray[Any]
F = TypeVar("F", bound=Callable[..., Any])

ENABLED = not vars(numba.config)["DISABLE_JIT"]
"""Whether numba compiles. Interpreted, these loops would take a thousand times as long."""

_word = np.uint64
_P1 = _word(0x9E3779B185EBCA87)
_P2 = _word(0xC2B2AE3D27D4EB4F)
_P3 = _word(0x165667B19E3779F9)
_P4 = _word(0x85EBCA77C2B2AE63)
_P5 = _word(0x27D4EB2F165667C5)
_STRIPE = 32
_WORD_BYTES = 8
_AHEAD = 1 << 4


def _compiled(function: F) -> F:
    try:
        return cast("F", numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:
        # No cache folder is writable: the code is compiled in each process.
        return cast("F", numba.njit(nogil=True)(function))


@_compiled
def _rotated(value: np.uint64, bits: np.uint64) -> np.uint64:
    return (value << bits) | (value >> (_word(64) - bits))


@_compiled
def _with_word(value: np.uint64, word: np.uint64) -> np.uint64:
    return _rotated(value ^ (_rotated(word * _P2, _word(31)) * _P1), _word(27)) * _P1 + _P4


@_compiled
def _with_bytes(value: np.uint64, tail: np.uint64, left: np.uint64) -> np.uint64:
    """Add the lowest `left` bytes of a word, fewer than eight."""
    if left >= _word(4):
        value ^= (tail & _word(0xFFFFFFFF)) * _P1
        value = _rotated(value, _word(23)) * _P2 + _P3
        tail >>= _word(32)
        left -= _word(4)
    while left:
        value ^= (tail & _word(0xFF)) * _P5
        value = _rotated(value, _word(11)) * _P1
        tail >>= _word(8)
        left -= _word(1)
    return value


@_compiled
def _with_lane(lane: np.uint64, word: np.uint64) -> np.uint64:
    return _rotated(lane + word * _P2, _word(31)) * _P1


@_compiled
def _word_at(data: Words, at: np.int64) -> np.uint64:
    """Return the word that begins at this byte."""
    shift = _word((at & 7) << 3)
    # In two steps, because a shift by 64 has no effect.
    word: np.uint64 = (data[at >> 3] >> shift) | ((data[(at >> 3) + 1] << _word(1)) << (_word(63) - shift))
    return word


@_compiled
def _finished(value: np.uint64) -> np.uint64:
    value = (value ^ (value >> _word(33))) * _P2
    value = (value ^ (value >> _word(29))) * _P3
    return value ^ (value >> _word(32))


@_compiled
def hash_words(values: Words, seeds: Words) -> Words:
    """Return XXH64 of words, with a seed per word or one for all."""
    hashes = np.empty(len(values), np.uint64)
    step = 0 if len(seeds) == 1 else 1
    for row in range(len(values)):
        hashes[row] = _finished(_with_word(seeds[row * step] + (_P5 + _word(8)), values[row]))
    return hashes


@_compiled
def hash_packed(words: tuple[Words, ...], seeds: Words) -> Words:
    """Return XXH64 of packed text of fewer than 32 bytes, with a seed per value or one for all; arbitrary at nulls."""
    step = 0 if len(seeds) == 1 else 1
    last = words[-1]
    hashes = np.empty(len(last), np.uint64)
    for row in range(len(last)):
        length = last[row] >> _word(56)
        if length == _word(255):
            length = _word(0)
        value = seeds[row * step] + (_P5 + length)
        whole = length >> _word(3)
        for number in range(whole):
            value = _with_word(value, words[number][row])
        left = length & _word(7)
        if left:
            value = _with_bytes(value, words[whole][row], left)
        hashes[row] = _finished(value)
    return hashes


@_compiled
def hash_text(data: Words, starts: Rows, lengths: Rows, seeds: Words) -> Words:
    """Return XXH64 of the bytes of each row, with a length and a seed per row or one for all.

    A word beyond the last byte is read.
    """
    one_length, one_seed = len(lengths) < len(starts), len(seeds) < len(starts)
    hashes = np.empty(len(starts), np.uint64)
    for row in range(len(starts)):
        length = lengths[0] if one_length else lengths[row]
        seed = seeds[0] if one_seed else seeds[row]
        at = starts[row]
        end = at + length
        if length >= _STRIPE:
            first, second, third, fourth = seed + _P1 + _P2, seed + _P2, seed, seed - _P1
            while at + _STRIPE <= end:
                first = _with_lane(first, _word_at(data, at))
                second = _with_lane(second, _word_at(data, at + 8))
                third = _with_lane(third, _word_at(data, at + 16))
                fourth = _with_lane(fourth, _word_at(data, at + 24))
                at += _STRIPE
            value = _rotated(first, _word(1)) + _rotated(second, _word(7))
            value += _rotated(third, _word(12)) + _rotated(fourth, _word(18))
            for lane in (first, second, third, fourth):
                value = (value ^ _with_lane(_word(0), lane)) * _P1 + _P4
        else:
            value = seed + _P5
        value += _word(length)
        while at + 8 <= end:
            value = _with_word(value, _word_at(data, at))
            at += 8
        if at < end:
            value = _with_bytes(value, _word_at(data, at), _word(end - at))
        hashes[row] = _finished(value)
    return hashes


@_compiled
def find(starts: Values, lowest: np.uint64, shift: np.uint64, hashes: Words, wanted: Words) -> tuple[Rows, Mask]:
    """Return, for each hash, the first row of a sorted run with this or a greater hash, and whether it is equal.

    Uses the run's directory. A wrong directory, from a damaged file, leads to wrong rows, but never to a read outside
    the arrays. The directory is read some entries ahead, to hide cache misses.
    """
    count, last_row, last_place = len(wanted), len(hashes) - 1, _word(len(starts) - 1)
    at, equal = np.empty(count, np.int64), np.empty(count, np.bool_)
    ahead = np.empty(_AHEAD, np.int64)
    for number in range(-_AHEAD, count):
        row = ahead[number & (_AHEAD - 1)]
        if number + _AHEAD < count:
            place = (max(wanted[number + _AHEAD], lowest) - lowest) >> shift
            ahead[number & (_AHEAD - 1)] = min(max(starts[min(place, last_place)], 0), last_row)
        if number < 0:
            continue
        value, here = wanted[number], hashes[row]
        while here < value and row < last_row:
            row += 1
            here = hashes[row]
        at[number], equal[number] = row + (here < value), here == value
    return at, equal


@_compiled
def _first_from(hashes: Words, low: int, value: np.uint64) -> int:
    """Return the first row from `low` on with this or a greater hash: exponential search, as it is mostly near, then
    binary search.
    """
    high, step = low, 1
    while high < len(hashes) and hashes[high] < value:
        low = high + 1
        high += step
        step *= 2
    high = min(high, len(hashes))
    while low < high:
        middle = (low + high) >> 1
        if hashes[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@_compiled
def search(hashes: Words, wanted: Words) -> tuple[Rows, Mask]:
    """Search like `find`, without a directory: each search begins at the result of the previous one."""
    count, low, before = len(hashes), 0, _word(0)
    at, equal = np.empty(len(wanted), np.int64), np.empty(len(wanted), np.bool_)
    for number in range(len(wanted)):
        value = wanted[number]
        if value < before:
            low = 0
        before = value
        low = _first_from(hashes, low, value)
        at[number], equal[number] = low, low < count and hashes[low] == value
    return at, equal


@_compiled
def ends(hashes: Words, starts: Rows, lasts: Words) -> Rows:
    """Return, for each start, the first row from there on whose hash is greater than the last one of its range."""
    result = np.empty(len(starts), np.int64)
    for number in range(len(starts)):
        after = lasts[number] + _word(1)
        # No hash is greater than the greatest one, to which 1 cannot be added.
        result[number] = _first_from(hashes, starts[number], after) if after else len(hashes)
    return result


@_compiled
def fill_directory(hashes: Words, lowest: np.uint64, shift: np.uint64, ends: Values) -> int:
    """Fill `ends`, an array of zeros, with the end of each directory entry of a sorted run; return the largest entry.

    For a damaged run, which is not sorted, the result is wrong, but nothing outside the array is written.
    """
    last_place = _word(len(ends) - 1)
    for row in range(len(hashes)):
        ends[min((hashes[row] - lowest) >> shift, last_place)] += 1
    largest, before = 0, 0
    for place in range(len(ends)):
        here = ends[place]
        largest = max(largest, here)
        before += here
        ends[place] = before
    return largest


@_compiled
def compare(ours: tuple[Values, ...], rows: Rows, theirs: tuple[Values, ...], others: Rows, equal: Mask) -> None:
    """Clear `equal` where a row of `ours` differs from its counterpart in `theirs`."""
    for number in range(len(rows)):
        if equal[number]:
            row, other = rows[number], others[number]
            same = True
            for part in range(len(ours)):
                same &= ours[part][row] == theirs[part][other]
            equal[number] = same


@_compiled
def pack_text(data: Values, words: Words, offsets: Values, begin: int, result: Words) -> None:
    """Write up to eight bytes of each value, from the byte `begin` of the value on, as a word with zeros after the end.

    `words` are the bytes again, except the last few.
    """
    # All in one function, because one that is called for each value takes several times as long.
    last_word = len(words) - 1
    for row in range(len(offsets) - 1):
        at = np.int64(offsets[row]) + begin
        left = np.int64(offsets[row + 1]) - at
        place, word = at >> 3, _word(0)
        if left > 0 and place < last_word:
            shift = _word((at & 7) << 3)
            # In two steps, because a shift by 64 has no effect.
            word = (words[place] >> shift) | ((words[place + 1] << _word(1)) << (_word(63) - shift))
            if left < _WORD_BYTES:
                word &= (_word(1) << _word(left << 3)) - _word(1)
        else:
            for number in range(_WORD_BYTES):
                if number < left:
                    word |= _word(data[at + number]) << _word(number << 3)
        result[row] = word


@_compiled
def make_room(first: Words, second: Words, at_first: Rows, at_second: Rows) -> None:
    """Add to the position of each number how many numbers of the other sorted array come before it.

    Equal numbers of the first array come before those of the second.
    """
    before = 0
    for number in range(len(first)):
        while before < len(second) and second[before] < first[number]:
            at_second[before] += number
            before += 1
        at_first[number] += before
    for number in range(before, len(second)):
        at_second[number] += len(first)


@_compiled
def scatter(values: Values, at: Rows, result: Values) -> None:
    """Write each value to its position in the result."""
    for number in range(len(values)):
        result[at[number]] = values[number]


@_compiled
def take_bits(
    values: Values, nulls: tuple[Values, int], rows: Rows, wanted: Values, result: Values
) -> tuple[Values, np.int64]:
    """Write the values in some rows to the result, zero at nulls; return the bitmap of those that are not null, and
    the number of nulls.

    `nulls` is the bitmap of the values and the position of the first one in it; without nulls the bitmap is empty. Rows
    that are not wanted are not read, and null. An empty `wanted` stands for all rows.
    """
    bitmap, offset = nulls
    valid = np.empty((len(rows) + 7) >> 3, np.uint8)
    some_null, some_unwanted = len(bitmap) > 0, len(wanted) > 0
    count = _word(0)
    # Without branches, because nulls cannot be predicted.
    for place in range(len(valid)):
        flags = _word(0)
        for number in range(place << 3, min((place + 1) << 3, len(rows))):
            there, row = _word(1), rows[number]
            if some_unwanted:
                there = _word(wanted[number])
                row *= np.int64(there)
            if some_null:
                at = row + offset
                there &= _word(bitmap[at >> 3]) >> _word(at & 7)
            result[number] = values[row] * there
            count += there
            flags |= there << _word(number & 7)
        valid[place] = flags
    return valid, len(rows) - np.int64(count)


@_compiled
def mark(marks: Values, rows: Rows, keep: np.uint8, add: np.uint8, dirty: np.uint8) -> tuple[bool, int]:
    """Set marks of rows, keeping those in `keep`; return whether any changed, and how many rows were not dirty."""
    changed, clean = False, 0
    for number in range(len(rows)):
        before = marks[rows[number]]
        after = (before & keep) | add
        changed |= after != before
        clean += (before & dirty) == 0
        marks[rows[number]] = after
    return changed, clean


@_compiled
def add_up(values: Values, order: Rows, starts: Rows) -> Values:
    """Return the sums of integers by groups of adjacent rows in `order`; groups begin at `starts`."""
    sums = np.empty(len(starts), values.dtype)
    for group in range(len(starts)):
        end = starts[group + 1] if group + 1 < len(starts) else len(order)
        total = values[order[starts[group]]]
        for place in range(starts[group] + 1, end):
            total += values[order[place]]
        sums[group] = total
    return sums


@_compiled
def greatest(values: Values, order: Rows, starts: Rows) -> Values:
    """Return the greatest value of groups of adjacent rows in `order`; groups begin at `starts`."""
    maxima = np.empty(len(starts), values.dtype)
    for group in range(len(starts)):
        end = starts[group + 1] if group + 1 < len(starts) else len(order)
        here = values[order[starts[group]]]
        for place in range(starts[group] + 1, end):
            here = max(here, values[order[place]])
        maxima[group] = here
    return maxima


@_compiled
def any_set(flags: Mask, order: Rows, starts: Rows) -> Mask:
    """Return whether any flag is set in groups of adjacent rows in `order`; groups begin at `starts`."""
    result = np.empty(len(starts), np.bool_)
    for group in range(len(starts)):
        end = starts[group + 1] if group + 1 < len(starts) else len(order)
        here = False
        for place in range(starts[group], end):
            here |= flags[order[place]]
        result[group] = here
    return result


@intrinsic  # type: ignore[untyped-decorator]  # numba has no types
def _copy(_context: Any, _target: Any, _source: Any, _length: Any) -> Any:
    """Copy bytes from one address to another."""

    def code(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        target, source = (builder.inttoptr(address, ir.IntType(8).as_pointer()) for address in arguments[:2])
        cgutils.raw_memcpy(builder, target, source, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.uint64), code


@intrinsic  # type: ignore[untyped-decorator]  # numba has no types
def _call(_context: Any, _function: Any, _first: Any, _second: Any) -> Any:
    """Call the C function at an address."""

    def code(_: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        kind = ir.FunctionType(word, [word, word])
        return builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])

    return types.int64(types.uint64, types.uint64, types.uint64), code


@_compiled
def copy_memory(starts: Words, lengths: Words, result: npt.NDArray[np.uint8]) -> None:
    """Copy the bytes at these addresses, one after the other."""
    at = _word(result.ctypes.data)
    for place in range(len(starts)):
        _copy(at, starts[place], lengths[place])
        at += lengths[place]


@_compiled
def call_each(function: np.uint64, first: Words, second: Words) -> Rows:
    """Return the results of the C function at an address, which has one or two words as arguments.

    A function with fewer arguments ignores the others, and the result of one that returns nothing has no meaning.
    """
    results = np.empty(len(first), np.int64)
    for place in range(len(first)):
        results[place] = _call(function, first[place], second[place])
    return results


@_compiled
def sort_groups(order: Rows, starts: Rows, values: Rows) -> None:
    """Sort small groups of `order` by the values of the rows; groups begin at `starts`."""
    for group in range(len(starts)):
        start = starts[group]
        end = starts[group + 1] if group + 1 < len(starts) else len(order)
        for place in range(start + 1, end):
            row, at = order[place], place
            value = values[row]
            while at > start and values[order[at - 1]] > value:
                order[at] = order[at - 1]
                at -= 1
            order[at] = row


@_compiled
def merge_spans(spans: tuple[Rows, Rows, Rows], sequences: tuple[Rows, Rows], result: tuple[Rows, Rows, Rows]) -> int:
    """Merge two sequences of spans, and group the spans of a key that overlap or touch; return the number of groups.

    `spans` are the keys, beginnings and ends, and `sequences` the positions in them, in the order of all three. Write
    to `result` the positions of all spans, where each group begins in these, and the greatest end of each group.
    """
    keys, begins, ends = spans
    first, second = sequences
    order, starts, latest = result
    at, other, groups, last_key = 0, 0, 0, np.int64(0)
    for place in range(len(order)):
        if other == len(second):
            from_first = True
        elif at == len(first):
            from_first = False
        else:
            ours, theirs = first[at], second[other]
            if keys[ours] != keys[theirs]:
                from_first = keys[ours] < keys[theirs]
            elif begins[ours] != begins[theirs]:
                from_first = begins[ours] < begins[theirs]
            else:
                from_first = ends[ours] <= ends[theirs]
        if from_first:
            span = first[at]
            at += 1
        else:
            span = second[other]
            other += 1
        order[place] = span
        if groups and keys[span] == last_key and begins[span] <= latest[groups - 1]:
            latest[groups - 1] = max(latest[groups - 1], ends[span])
        else:
            starts[groups], latest[groups] = place, ends[span]
            groups += 1
        last_key = keys[span]
    return groups
