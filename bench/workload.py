"""Batches for the engine benchmark: row ids by a distribution, and keys of a kind made of ids."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

BATCH_ROWS = 100_000
_SCATTER = 2_654_435_761
_ZIPF = 1.1
_GROUPS = 1000

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Case:
    """One setting of the benchmark."""

    kind: str
    distribution: str
    new_share: float
    keys: int

    @property
    def name(self) -> str:
        return f"{self.kind} {self.distribution} new={self.new_share:.0%} keys={self.keys // 1_000_000}M"


@dataclass(frozen=True)
class Batch:
    """Rows of one batch, in the form that each store takes; making it is not part of what is measured."""

    keys: pa.Table
    amounts: npt.NDArray[np.int64]
    key_bytes: list[bytes]
    packed_keys: pa.Array
    """The same as an Arrow array."""
    key_objects: list[object]


def key_table(kind: str, ids: Ids) -> pa.Table:
    """Keys of int64, of 20 characters, or of both kinds of columns."""
    if kind == "int64":
        return pa.table({"id": _array(ids)})
    if kind == "string":
        return pa.table({"id": _text("user-", ids, 15)})
    return pa.table({"group": _array(ids % _GROUPS), "item": _text("item-", ids, 12)})


def batch_of(kind: str, ids: Ids, amounts: npt.NDArray[np.int64]) -> Batch:
    keys = key_table(kind, ids)
    columns = [column.to_pylist() for column in keys.columns]
    objects: list[object] = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
    packed = [_packed(column, values) for column, values in zip(keys.columns, columns, strict=True)]
    joined = packed[0] if len(packed) == 1 else [part + other for part, other in zip(*packed, strict=True)]
    return Batch(
        keys=keys,
        amounts=amounts,
        key_bytes=joined,
        packed_keys=pa.array(joined, pa.binary()),
        key_objects=objects,
    )


def batches(case: Case, count: int, *, seed: int) -> Iterator[Batch]:
    """Batches of a case; new keys come in the order of their ids."""
    random = np.random.default_rng(seed)
    following = case.keys
    for _ in range(count):
        if case.distribution == "uniform":
            ids = random.integers(0, case.keys, BATCH_ROWS)
        else:
            ids = (random.zipf(_ZIPF, BATCH_ROWS) % case.keys * _SCATTER) % case.keys
        fresh = int(BATCH_ROWS * case.new_share)
        if fresh:
            rows = random.choice(BATCH_ROWS, fresh, replace=False)
            ids[rows] = np.arange(following, following + fresh)
            following += fresh
        yield batch_of(case.kind, ids.astype(np.int64), random.integers(1, 100, BATCH_ROWS))


def _array(values: Ids) -> pa.Array:
    return pa.array(values.astype(np.int64))


def _text(prefix: str, ids: Ids, width: int) -> pa.Array:
    return pc.binary_join_element_wise(prefix, pc.utf8_lpad(_array(ids).cast(pa.string()), width, "0"), "")


def _packed(column: pa.ChunkedArray, values: list[object]) -> list[bytes]:
    if pa.types.is_string(column.type):
        return [str(value).encode() for value in values]
    raw = np.array(values, dtype=">i8").tobytes()
    return [raw[start : start + 8] for start in range(0, len(raw), 8)]
