"""Key hash of one encoded key: XXH64 in plain Python, for tables that are written key by key.

The result equals `arrays.key_hash` over a column with one binary value, which is made for many values and slow for one.
"""

from statebed.arrays.key_hash import HASH_SEED

_P1 = 0x9E3779B185EBCA87
_P2 = 0xC2B2AE3D27D4EB4F
_P3 = 0x165667B19E3779F9
_P4 = 0x85EBCA77C2B2AE63
_P5 = 0x27D4EB2F165667C5
_MASK = (1 << 64) - 1
_STRIPE = 32


def hash_of(key: bytes) -> int:
    """Return the unsigned hash of an encoded key."""
    position = len(key) - len(key) % _STRIPE
    value = _hash_stripes(key, position) if position else HASH_SEED + _P5
    value += len(key)
    while position + 8 <= len(key):
        word = _rotate(int.from_bytes(key[position : position + 8], "little") * _P2 & _MASK, 31) * _P1
        value = _rotate((value ^ word) & _MASK, 27) * _P1 + _P4
        position += 8
    if position + 4 <= len(key):
        value ^= int.from_bytes(key[position : position + 4], "little") * _P1
        value = _rotate(value & _MASK, 23) * _P2 + _P3
        position += 4
    for byte in key[position:]:
        value = _rotate((value ^ byte * _P5) & _MASK, 11) * _P1
    value &= _MASK
    value = (value ^ value >> 33) * _P2 & _MASK
    value = (value ^ value >> 29) * _P3 & _MASK
    return value ^ value >> 32


def _hash_stripes(key: bytes, end: int) -> int:
    lanes = [HASH_SEED + _P1 + _P2, HASH_SEED + _P2, HASH_SEED, HASH_SEED - _P1]
    for position in range(0, end, 8):
        lane = position // 8 % 4
        word = int.from_bytes(key[position : position + 8], "little")
        lanes[lane] = _rotate((lanes[lane] + word * _P2) & _MASK, 31) * _P1 & _MASK
    value = sum(_rotate(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True))
    for lane in lanes:
        value = (value ^ _rotate(lane * _P2 & _MASK, 31) * _P1) * _P1 + _P4
    return value & _MASK


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK
