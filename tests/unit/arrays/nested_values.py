"""Arrays of random types of keys, nested ones too, with random values and nulls at every level."""

from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

FLOATS = st.sampled_from([0.0, -0.0, 1.5, -1.5, float("inf"), -float("inf"), float("nan"), -float("nan"), 1e-310, 0.25])
TEXTS = st.text(alphabet="\x00a\x01\xffb漢", max_size=5)
BLOBS = st.binary(max_size=5) | st.sampled_from([b"\x00", b"\x00\x00", b"\x00\xff", b"\xff", b"\x00\x01"])


def integers(bits: int, *, signed: bool = True) -> st.SearchStrategy[int]:
    low = -(1 << (bits - 1)) if signed else 0
    high = (1 << (bits - 1 if signed else bits)) - 1
    return st.integers(low, high) | st.sampled_from([0, 1, low, high, high // 3])


def decimals(precision: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    some = st.integers(-most, most) | st.sampled_from([0, 127, 128, -128, -129, most, -most])
    return some.map(lambda number: Decimal((0 if number >= 0 else 1, tuple(map(int, str(abs(number)))), -2)))


PLAIN: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), integers(8)),
    (pa.int32(), integers(32)),
    (pa.int64(), integers(64)),
    (pa.uint8(), integers(8, signed=False)),
    (pa.uint16(), integers(16, signed=False)),
    (pa.uint32(), integers(32, signed=False)),
    (pa.uint64(), integers(64, signed=False)),
    (pa.float32(), FLOATS.filter(lambda one: one != 1e-310)),
    (pa.float64(), FLOATS),
    (pa.string(), TEXTS),
    (pa.large_string(), TEXTS),
    (pa.binary(), BLOBS),
    (pa.large_binary(), BLOBS),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.date32(), integers(20)),
    (pa.date64(), integers(20).map(lambda day: day * 86_400_000)),
    (pa.time32("s"), st.integers(0, 86_399)),
    (pa.time32("ms"), st.integers(0, 86_399_999)),
    (pa.time64("us"), st.integers(0, 86_399_999_999)),
    (pa.time64("ns"), st.integers(0, 86_399_999_999_999)),
    (pa.timestamp("s"), integers(64)),
    (pa.timestamp("ms", "UTC"), integers(64)),
    (pa.timestamp("ns"), integers(64)),
    (pa.duration("s"), integers(64)),
    (pa.duration("us"), integers(64)),
    (pa.duration("ns"), integers(64)),
    (pa.decimal32(7, 2), decimals(7)),
    (pa.decimal64(17, 2), decimals(17)),
    (pa.decimal128(18, 2), decimals(18)),
    (pa.decimal128(38, 2), decimals(38)),
    (pa.decimal256(12, 2), decimals(12)),
    (pa.decimal256(70, 2), decimals(70)),
]


@st.composite
def _nested(
    draw: st.DrawFn, inner: st.SearchStrategy[tuple[pa.DataType, st.SearchStrategy[Any]]]
) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    way = draw(st.sampled_from(["list", "large", "fixed", "struct"]))
    if way == "struct":
        parts = draw(st.lists(inner, min_size=1, max_size=3))
        names = [f"f{number}" for number in range(len(parts))]
        values = st.fixed_dictionaries({name: st.none() | one for name, (_, one) in zip(names, parts, strict=True)})
        return pa.struct([(name, kind) for name, (kind, _) in zip(names, parts, strict=True)]), values
    kind, values = draw(inner)
    if way == "fixed":
        return pa.list_(kind, 2), st.lists(st.none() | values, min_size=2, max_size=2)
    return (pa.list_ if way == "list" else pa.large_list)(kind), st.lists(st.none() | values, max_size=4)


KINDS = st.recursive(st.sampled_from(PLAIN), _nested, max_leaves=5)


@st.composite
def arrays(draw: st.DrawFn, *, kinds: Any = KINDS, least: int = 1, most: int = 12) -> pa.Array:
    """An array of some type, that may be part of a longer one."""
    kind, values = draw(kinds)
    drawn = draw(st.lists(st.none() | values, min_size=least, max_size=most))
    # Values that come again show what is equal.
    some = [*drawn, *draw(st.lists(st.sampled_from(drawn), max_size=most))]
    skipped = draw(st.integers(0, 2))
    return pa.array([*draw(st.lists(st.none() | values, min_size=skipped, max_size=skipped)), *some], kind).slice(
        skipped
    )
