"""HyperLogLog sketches of Apache DataSketches: its hash of a number and the bytes of its sketches, vectorized.

Spark aggregates with this library (`hll_sketch_agg`). Its Python version adds values one by one, so this module
implements its definitions over whole arrays: the register that a value selects, and the value stored in it. Besides its
registers a sketch has a running estimate, which depends on the order of values; it is ignored.

A *code* is `register * 64 + value`; the value is one more than the number of leading zeros in the second half of the
hash.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.columns import validity
from statebed.arrays.packed_text import byte_offsets

Words = npt.NDArray[np.uint64]
Codes = npt.NDArray[np.int32]
Integers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

VALUES = 64
"""Upper bound of the value of a register; 0 means unused."""
_MAX_ZEROS = 62
_SEED = np.uint64(9001)
_NUMBER_BYTES = np.uint64(8)
_FACTORS = np.uint64(0x87C37B91114253D5), np.uint64(0x4CF5AD432745937F)
_MIXERS = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)

_REGISTERS = 2
"""Mode of a sketch that is no longer a list (0) or a set (1) of coupons."""
_HEADERS = np.array([8, 12, 40])
"""Number of bytes before the coupons of a list, the coupons of a set, and the registers."""
_FAMILY_AT, _PRECISION_AT, _MODE_AT = 2, 3, 7
_FAMILY = 7
_HLL_8 = 2
_COUPON_BITS = np.uint32(26)
_BYTES_AT_ONCE = 1 << 20


def codes_of_numbers(numbers: Words, precision: int) -> Codes:
    """Return the code of each number: from 128-bit MurmurHash3 of its eight bytes."""
    with np.errstate(over="ignore"):
        mixed = numbers * _FACTORS[0]
        mixed = ((mixed << np.uint64(31)) | (mixed >> np.uint64(33))) * _FACTORS[1]
        start = _SEED ^ _NUMBER_BYTES
        half = (mixed ^ start) + start
        other = _stirred(half + start)
        first = _stirred(half) + other
        second = other + first
    register = (first & np.uint64((1 << precision) - 1)).astype(np.int32)
    # The upper 53 bits make an exact double, whose exponent gives the number of zeros; if they are 0, the lower bits
    # do.
    upper, lower = (second >> np.uint64(11)).astype(np.float64), (second & np.uint64(2047)).astype(np.float64)
    zeros = np.where(upper > 0, 53 - np.frexp(upper)[1], 64 - np.frexp(lower)[1])
    value = np.minimum(zeros, _MAX_ZEROS).astype(np.int32) + np.int32(1)
    return np.asarray(register * np.int32(VALUES) + value, dtype=np.int32)


def _stirred(words: Words) -> Words:
    for factor in _MIXERS:
        words = (words ^ (words >> np.uint64(33))) * factor
    return words ^ (words >> np.uint64(33))


def codes_of_sketches(sketches: pa.Array) -> tuple[Codes, Integers]:
    """Return the codes of sketches of one precision, and the sketch that each code belongs to; null has no codes."""
    offsets = byte_offsets(sketches)
    lengths = np.where(validity(sketches), np.diff(offsets), 0)
    places = np.flatnonzero(lengths)
    pieces = np.cumsum(lengths[places]) // _BYTES_AT_ONCE
    if not len(places):
        return np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64)
    data = np.frombuffer(sketches.buffers()[2], dtype=np.uint8)
    precision = int(data[offsets[places[0]] + _PRECISION_AT])
    parts: list[tuple[Codes, Integers]] = []
    for piece in np.split(places, np.flatnonzero(np.diff(pieces)) + 1):
        starts, modes = offsets[piece], data[offsets[piece] + _MODE_AT]
        assert ((data[starts + _FAMILY_AT] == _FAMILY) & (data[starts + _PRECISION_AT] == precision)).all()
        assert ((modes >> 2) == _HLL_8).all()
        full = (modes & 3) == _REGISTERS
        bodies = starts + _HEADERS[modes & 3]
        parts.append(_of_registers(data, bodies[full], piece[full], precision))
        parts.append(_of_coupons(data, bodies[~full], (starts + lengths[piece])[~full], piece[~full], precision))
    return np.concatenate([codes for codes, _ in parts]), np.concatenate([owners for _, owners in parts])


def _of_registers(data: Bytes, bodies: Integers, owners: Integers, precision: int) -> tuple[Codes, Integers]:
    values = data[bodies[:, np.newaxis] + np.arange(1 << precision)]
    sketch, register = np.nonzero(values)
    codes = register.astype(np.int32) * np.int32(VALUES) + values[sketch, register].astype(np.int32)
    return codes, owners[sketch]


def _of_coupons(
    data: Bytes, bodies: Integers, ends: Integers, owners: Integers, precision: int
) -> tuple[Codes, Integers]:
    """Decode coupons: a value and 26 bits of the hash, the lowest of which select the register; 0 is a free slot."""
    counts = (ends - bodies) // 4
    firsts = np.repeat(bodies // 4 - np.cumsum(counts) + counts, counts)
    coupons = data[: len(data) // 4 * 4].view(np.uint32)[firsts + np.arange(len(firsts))]
    used = coupons != 0
    coupons = coupons[used]
    register = (coupons & np.uint32((1 << precision) - 1)).astype(np.int32)
    codes = register * np.int32(VALUES) + (coupons >> _COUPON_BITS).astype(np.int32)
    return codes, np.repeat(owners, counts)[used]
