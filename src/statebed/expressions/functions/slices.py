"""Substrings whose positions differ from row to row, cut by gathering bytes instead of looping over rows."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.columns import int64_values, validity
from statebed.expressions.terms import Datum, arrays

Positions = npt.NDArray[np.int64]

_CONTINUES = 0x80
_UPPER_BITS = 0xC0
"""Mask of the upper bits of a UTF-8 byte; 10 marks a continuation byte."""
_FARTHEST = 2**31


def substring_by_row(text: Datum, position: Datum, length: Datum) -> pa.Array:
    """Return `length` characters from `position`, which counts from 1, or from the end if negative."""
    texts, positions, lengths = arrays(text, position, length)
    valid = validity(texts) & validity(positions) & validity(lengths)
    offsets, content = _content(texts)
    characters = np.append(np.flatnonzero((content & _UPPER_BITS) != _CONTINUES), len(content)).astype(np.int64)
    first = np.searchsorted(characters, offsets)
    count = np.diff(first)
    wanted = np.clip(int64_values(positions), -_FARTHEST, _FARTHEST)
    start = np.where(wanted > 0, wanted - 1, np.where(wanted < 0, count + wanted, 0))
    end = np.clip(start + np.clip(int64_values(lengths), 0, _FARTHEST), 0, count)
    start = np.minimum(np.clip(start, 0, count), end)
    return _gathered(content, characters[first[:-1] + start], characters[first[:-1] + end], valid)


def begins_or_ends(text: Datum, part: Datum, *, at_end: bool) -> pa.Array:
    """Return the first or last bytes of each text, as many as `part` has; null where the text is shorter."""
    texts, parts = arrays(text, part)
    offsets, content = _content(texts)
    size = np.diff(_content(parts)[0])
    fits = size <= np.diff(offsets)
    size = np.where(fits, size, 0)
    start = offsets[1:] - size if at_end else offsets[:-1]
    return _gathered(content, start, start + size, fits & validity(texts) & validity(parts))


def _content(texts: pa.Array) -> tuple[Positions, npt.NDArray[np.uint8]]:
    """Return the offsets of each text and the bytes of all texts."""
    _, offsets, data = texts.buffers()
    if not len(texts) or data is None:
        return np.zeros(len(texts) + 1, dtype=np.int64), np.zeros(0, dtype=np.uint8)
    wide = np.frombuffer(offsets, dtype=np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
    return wide - wide[0], np.frombuffer(data, dtype=np.uint8)[wide[0] : wide[-1]]


def _gathered(
    content: npt.NDArray[np.uint8], start: Positions, end: Positions, valid: npt.NDArray[np.bool_]
) -> pa.Array:
    """Gather the bytes of each row from `start` up to, but not including, `end`."""
    size = np.where(valid, end - start, 0)
    offsets = np.concatenate([[0], np.cumsum(size)]).astype(np.int64)
    taken = content[np.repeat(start - offsets[:-1], size) + np.arange(offsets[-1])]
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
    buffers = [bitmap, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(taken))]
    return pa.Array.from_buffers(pa.string(), len(size), buffers)
