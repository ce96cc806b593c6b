"""Random rows over which functions are compared with Spark: every type, nulls, edge values and unicode."""

import datetime as dt
import json
import math
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

HERE = Path(__file__).parent
CASES = [
    line
    for line in (HERE / "function_cases.txt").read_text(encoding="utf-8").splitlines()
    if line.strip() and not line.startswith("#")
]
"""Expressions over the columns of `random_rows`, none of which fails for a row."""

EDGES = [0, 1, -1, 2, 7, 10, 100]
WORDS = ["", "a", "Ab", "hello", "Straße", "été", "x y", " pad ", "日本", "a,b,c", "😀z", "%_", "aXbXc", "O'Neil", "Z"]
TEXTS = [*WORDS, "The quick brown fox", "foo(bar)[1]", "one two  three", "tab\there", "line\nbreak", "100%", "ÀÉÎ õü"]
URLS = [
    "http://user:pw@example.com:80/a/b.html?q=1&r=a%20b#top",
    "https://example.com",
    "ftp://host/path?x=",
    "not a url",
    "http://h/?a=1&b=2&a=3",
]
PATHS = ["$.a", "$"]
_DAY_US = 86_400_000_000
_YEAR_US = 31_556_952_000_000


def _integers(bits: int) -> Callable[[random.Random], int]:
    least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    edges = [least, most, *(edge for edge in EDGES if edge <= most)]
    return lambda rng: rng.choice(edges) if rng.random() < 0.4 else rng.randint(least, most)


def _double(rng: random.Random) -> float:
    edges = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1e300, -1e-300, math.nan, math.inf, -math.inf, 123456789.125, 1e16]
    return rng.choice(edges) if rng.random() < 0.5 else rng.uniform(-1000, 1000)


def _modest(rng: random.Random) -> float:
    return rng.choice([0.0, 0.5, 1.0, -1.0, 2.5, -3.75]) if rng.random() < 0.3 else round(rng.uniform(-50, 50), 3)


def _text(rng: random.Random) -> str:
    if rng.random() < 0.6:
        return rng.choice(TEXTS)
    return "".join(rng.choice("abcXYZ 019_-.,éß日😀") for _ in range(rng.randint(0, 12)))


def _word(rng: random.Random) -> str:
    return rng.choice(WORDS)


def _day(rng: random.Random) -> dt.date:
    edges = [
        dt.date(1970, 1, 1),
        dt.date(2024, 2, 29),
        dt.date(1969, 12, 31),
        dt.date(2000, 12, 31),
        dt.date(101, 1, 1),
    ]
    return rng.choice(edges) if rng.random() < 0.3 else dt.date(1900, 1, 1) + dt.timedelta(rng.randint(0, 80_000))


def _instant(rng: random.Random) -> dt.datetime:
    edges = ["1970-01-01", "2024-02-29 23:59:59.999999", "1969-12-31 23:59:59.5", "2023-01-31 12:00:00"]
    if rng.random() < 0.3:
        return dt.datetime.fromisoformat(rng.choice(edges)).replace(tzinfo=dt.UTC)
    return dt.datetime(1950, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=rng.randint(0, 4 * 10**15))


def _json_value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.random()
    if depth < 2 and kind < 0.25:
        return [_json_value(rng, depth + 1) for _ in range(rng.randint(0, 3))]
    if depth < 2 and kind < 0.5:
        return {key: _json_value(rng, depth + 1) for key in rng.sample(["a", "b", "c", "k y"], rng.randint(0, 3))}
    return rng.choice([None, True, False, 0, -7, 12345678901, 1.5, -0.25, "x", "", 'q"q', "été\n"])


def _json(rng: random.Random) -> str:
    if rng.random() < 0.1:
        return rng.choice(["", "{", "nope", "[1,", '{"a"}', "  "])
    if rng.random() < 0.7:
        whole = {"a": _json_value(rng), "b": _json_value(rng), "n": rng.randint(-9, 9)}
        return json.dumps(whole, ensure_ascii=rng.random() < 0.5)
    return json.dumps(_json_value(rng))


def _list_of(item: Callable[[random.Random], Any], *, most: int = 5, nulls: float = 0.15) -> Callable[..., list[Any]]:
    return lambda rng: [None if rng.random() < nulls else item(rng) for _ in range(rng.choice([0, 1, 2, 3, most]))]


def _map_of(key: Callable[[random.Random], Any], item: Callable[[random.Random], Any]) -> Callable[..., Any]:
    return lambda rng: list({key(rng): item(rng) for _ in range(rng.randint(0, 4))}.items())


def _small(rng: random.Random) -> int:
    return rng.randint(-4, 6)


def _letter(rng: random.Random) -> str:
    return rng.choice("abcXé")


def _decimal(precision: int, scale: int) -> Callable[[random.Random], Decimal]:
    def value(rng: random.Random) -> Decimal:
        digits = rng.choice([0, 1, 5, 10**precision - 1, rng.randint(0, 10 ** rng.randint(1, precision) - 1)])
        return Decimal(rng.choice([digits, -digits])).scaleb(-scale)

    return value


def _pair(rng: random.Random) -> dict[str, Any]:
    return {"x": rng.choice([None, _small(rng)]), "y": rng.choice([None, _letter(rng)])}


def _element(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind))


COLUMNS: dict[str, tuple[pa.DataType, Callable[[random.Random], Any]]] = {
    "t": (pa.int8(), _integers(8)),
    "h": (pa.int16(), _integers(16)),
    "i": (pa.int32(), _integers(32)),
    "l": (pa.int64(), _integers(64)),
    "k": (pa.int32(), _small),
    "k2": (pa.int32(), lambda rng: rng.randint(1, 5)),
    "kl": (pa.int64(), lambda rng: rng.randint(-100_000, 100_000)),
    "shift": (pa.int32(), lambda rng: rng.choice([0, 1, 3, 31, 32, 33, 63, 64, -1])),
    "r": (pa.float32(), lambda rng: rng.choice([0.0, -1.5, 3.0e7, math.nan, math.inf, rng.randint(-99, 99) / 8])),
    "d": (pa.float64(), _double),
    "e": (pa.float64(), _double),
    "q": (pa.float64(), _modest),
    "q2": (pa.float64(), _modest),
    "unit": (pa.float64(), lambda rng: rng.choice([-1.0, 0.0, 1.0, 1.5, rng.uniform(-1, 1)])),
    "m": (pa.decimal128(10, 2), _decimal(10, 2)),
    "n": (pa.decimal128(6, 3), _decimal(6, 3)),
    "w": (pa.decimal128(38, 18), _decimal(30, 18)),
    "b": (pa.bool_(), lambda rng: rng.random() < 0.5),
    "c": (pa.bool_(), lambda rng: rng.random() < 0.5),
    "s": (pa.string(), _text),
    "u": (pa.string(), _text),
    "z": (pa.string(), _word),
    "bin": (pa.binary(), lambda rng: rng.choice([b"", b"a", b"\x00\xff", b"hello world", _text(rng).encode()])),
    "hexed": (pa.string(), lambda rng: rng.choice(["", "1", "ff", "0A1b", "xyz", "DEADBEEF", "68656c6c6f"])),
    "numeral": (pa.string(), lambda rng: rng.choice(["0", "-12", " 7 ", "15", "1.5", "abc", "", "12345678901", "+3"])),
    "doc": (pa.string(), _json),
    "url": (pa.string(), lambda rng: rng.choice(URLS)),
    "pairs": (pa.string(), lambda rng: rng.choice(["a:1,b:2", "a", "", "x:,y:3", "k:v:w", "m=1;n=2"])),
    "day": (pa.date32(), _day),
    "day2": (pa.date32(), _day),
    "ts": (pa.timestamp("us", "UTC"), _instant),
    "ts2": (pa.timestamp("us", "UTC"), _instant),
    "ntz": (pa.timestamp("us"), lambda rng: _instant(rng).replace(tzinfo=None)),
    "p": (pa.struct([("x", pa.int32()), ("y", pa.string())]), _pair),
    "p2": (pa.struct([("x", pa.int32()), ("y", pa.string())]), _pair),
    "li": (_element(pa.int32()), _list_of(_small)),
    "lj": (_element(pa.int32()), _list_of(_small, nulls=0.05)),
    "lq": (_element(pa.float64()), _list_of(_modest, nulls=0.0)),
    "ld": (_element(pa.float64()), _list_of(_double)),
    "lf": (_element(pa.float32()), _list_of(_modest, nulls=0.05)),
    "ls": (_element(pa.string()), _list_of(_letter)),
    "lt": (_element(pa.string()), _list_of(_text)),
    "lb": (_element(pa.bool_()), _list_of(lambda rng: rng.random() < 0.5)),
    "ll": (_element(_element(pa.int32())), _list_of(_list_of(_small), most=3)),
    "lp": (_element(pa.struct([("x", pa.int32()), ("y", pa.string())])), _list_of(_pair)),
    "ms": (pa.map_(pa.string(), pa.int32()), _map_of(_letter, _small)),
    "ms2": (pa.map_(pa.string(), pa.int32()), _map_of(lambda rng: rng.choice("dEfg"), _small)),
    "mi": (pa.map_(pa.int32(), pa.string()), _map_of(_small, lambda rng: rng.choice([None, _word(rng)]))),
}


def random_rows(seed: int, count: int = 60) -> pa.Table:
    """Return `count` rows; about one value in eight is null, and one row is all nulls."""
    columns = {}
    for name, (kind, value) in COLUMNS.items():
        rng = random.Random(f"{seed} {name}")
        values = [None if row == 0 or rng.random() < 0.12 else value(rng) for row in range(count)]
        columns[name] = pa.array(values, kind)
    return pa.table(columns)


def far_rows(seed: int, count: int = 60) -> pa.Table:
    """Return random rows whose times are in years of every size: negative ones, those before
    1900, those with more than four digits, and few between.
    """
    rows = random_rows(seed, count)
    for place, field in enumerate(rows.schema):
        if not pa.types.is_temporal(field.type):
            continue
        rng = random.Random(f"{seed} far {field.name}")
        instants = [None if rng.random() < 0.12 else _far_instant_us(rng) for _ in range(count)]
        if pa.types.is_date(field.type):
            days = [None if instant is None else instant // _DAY_US for instant in instants]
            rows = rows.set_column(place, field, pa.array(days, pa.int32()).cast(field.type))
        else:
            rows = rows.set_column(place, field, pa.array(instants, pa.int64()).cast(field.type))
    return rows


def _far_instant_us(rng: random.Random) -> int:
    first, last = rng.choice([(-2100, -1900), (-1971, 8100), (-170, 130), (8000, 40_000), (-140_000, 140_000)])
    return rng.randint(first * _YEAR_US, last * _YEAR_US)
