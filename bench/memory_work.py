"""Three kinds of work on state that grows to many times the memory budget; each checks its own answers.

Rows are made of their numbers, so that every answer is known without keeping anything.
"""

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.columns import from_numpy, int64_values
from statebed.format.ranges import WHOLE_SPACE
from statebed.format.schema import TIME, TIMESTAMP
from statebed.state import (
    KeyedView,
    Merge,
    Tiers,
    TimeKeyedView,
    keyed_table_config,
    merge_columns,
    timestamp_table_config,
)
from statebed.state.upload import Upload
from statebed.storage import ObjectStore

Numbers = npt.NDArray[np.int64]

_MINUTE_US = 60_000_000
_NARROW = ("trips", "total")
_WIDE = (*_NARROW, *(f"counter_{number}" for number in range(12)))
_SCATTER = 0x9E3779B1


class Work(Protocol):
    """Something to do with state, in steps."""

    batch_rows: int
    row_bytes: int
    """Minimum size of a row as state."""

    def steps(self, state_bytes: int) -> Iterator[int]:
        """Grow the state to `state_bytes` and use it; yield the rows of each finished step."""

    def checkpoint(self) -> None:
        """Make everything durable."""

    def check(self) -> None:
        """Compare all of the state with what it must be."""


class Append:
    """Rows are appended to a time-keyed table, and all are read at the end."""

    batch_rows = 50_000
    row_bytes = 48
    """Bin, hash, key, time, sequence and one value of eight bytes each."""

    def __init__(self, tiers: Tiers, store: ObjectStore) -> None:
        self._view = _timed("rides", tiers, store)
        self._store = store
        self._rows = 0

    def steps(self, state_bytes: int) -> Iterator[int]:
        while self._rows * self.row_bytes < state_bytes:
            numbers = np.arange(self._rows, self._rows + self.batch_rows, dtype=np.int64)
            self._view.append(_timed_rows(numbers, minute=self._rows // (8 * self.batch_rows)))
            self._rows += self.batch_rows
            yield self.batch_rows

    def checkpoint(self) -> None:
        _put(self._view.checkpoint(_name), self._store)

    def check(self) -> None:
        rows = total = 0
        for piece in self._view.scan():
            rows += piece.num_rows
            total += pc.sum(piece["value"]).as_py()
        _expect("appended rows", (rows, total), (self._rows, self._rows * (self._rows - 1) // 2))


class ReadModifyWrite:
    """A keyed table is filled; then keys drawn evenly from all of it are read, added to and written."""

    batch_rows = 100_000

    def __init__(self, tiers: Tiers, store: ObjectStore, *, counters: Sequence[str] = _NARROW) -> None:
        schema = pa.schema([("id", pa.int64()), *((name, pa.int64()) for name in counters)])
        config = keyed_table_config("counters", "", ["id"], schema)
        self._view = KeyedView(config, owned=WHOLE_SPACE, store=store, tiers=tiers)
        self._store = store
        self._counters = counters
        self._merge = merge_columns(**dict.fromkeys(counters, Merge.SUM))
        self.row_bytes = 8 + 8 + 8 * len(counters)
        """Hash, key and values; marks and index come on top."""
        self._keys = 0
        self._total = 0

    def steps(self, state_bytes: int) -> Iterator[int]:
        while self._keys * self.row_bytes < state_bytes:
            self._add(np.arange(self._keys, self._keys + self.batch_rows, dtype=np.int64))
            self._keys += self.batch_rows
            yield self.batch_rows
        random = np.random.default_rng(11)
        for _ in range(max(self._keys // self.batch_rows // 2, 10)):
            self._add(random.integers(0, self._keys, self.batch_rows))
            yield self.batch_rows

    def checkpoint(self) -> None:
        _put(self._view.checkpoint(_name).uploads, self._store)

    def check(self) -> None:
        rows = total = 0
        for piece in self._view.scan():
            rows += piece.num_rows
            total += pc.sum(piece["total"]).as_py()
        _expect("keys and their sum", (rows, total), (self._keys, self._total))
        keys = np.arange(0, self._keys, max(self._keys // 1000, 1), dtype=np.int64)
        _, is_known = self._view.get(pa.table({"id": from_numpy(_scattered(keys), pa.int64())}))
        _expect("keys looked up", int(np.count_nonzero(is_known)), len(keys))

    def _add(self, ids: Numbers) -> None:
        keys = pa.table({"id": from_numpy(_scattered(ids), pa.int64())})
        amounts = from_numpy(ids % 89, pa.int64())
        self._view.merge(keys, pa.table(dict.fromkeys(self._counters, amounts)), self._merge)
        self._total += int((ids % 89).sum())


class Join:
    """Two time-keyed sides: each batch of one side looks up its keys in the last minutes of the other, at times in
    minutes long past.
    """

    batch_rows = 50_000
    row_bytes = 48
    """Bin, hash, key, time, sequence and one value of eight bytes each."""
    _old_every = 16

    def __init__(self, tiers: Tiers, store: ObjectStore) -> None:
        self._orders = _timed("orders", tiers, store)
        self._payments = _timed("payments", tiers, store)
        self._store = store
        self._minutes = 0
        self._paid = 0

    def steps(self, state_bytes: int) -> Iterator[int]:
        rows = self.batch_rows
        while 2 * self._minutes * rows * self.row_bytes < state_bytes:
            minute = self._minutes
            self._orders.append(_timed_rows(self._numbers(minute), minute=minute))
            paid = self._numbers(max(minute - 1, 0))
            self._payments.append(_timed_rows(paid, minute=minute))
            self._match(paid, max(minute - 2, 0), minute + 1)
            if minute % self._old_every == self._old_every - 1:
                old = minute // 2
                self._match(self._numbers(old)[::50], old, old + 1)
            self._minutes += 1
            yield 2 * rows

    def checkpoint(self) -> None:
        for view in (self._orders, self._payments):
            _put(view.checkpoint(_name), self._store)

    def check(self) -> None:
        for name, view in (("orders", self._orders), ("payments", self._payments)):
            rows = sum(piece.num_rows for piece in view.scan())
            _expect(name, rows, self._minutes * self.batch_rows)

    def _numbers(self, minute: int) -> Numbers:
        return np.arange(minute * self.batch_rows, (minute + 1) * self.batch_rows, dtype=np.int64)

    def _match(self, numbers: Numbers, first: int, end: int) -> None:
        """Every key looked up is there once, with its value."""
        keys = pa.table({"id": from_numpy(_scattered(numbers), pa.int64())})
        rows = self._orders.read(first * _MINUTE_US, end * _MINUTE_US, keys=keys)
        values = int64_values(rows["value"])
        _expect("matches", (len(values), int(values.sum())), (len(numbers), int(numbers.sum())))
        self._paid += len(values)


WORKS: dict[str, Callable[[Tiers, ObjectStore], Work]] = {
    "append-only": Append,
    "read-modify-write": ReadModifyWrite,
    "read-modify-write wide": partial(ReadModifyWrite, counters=_WIDE),
    "join-like": Join,
}


def _timed(name: str, tiers: Tiers, store: ObjectStore) -> TimeKeyedView:
    schema = pa.schema([("id", pa.int64()), ("value", pa.int64())])
    forever = dt.timedelta(days=3650)
    config = timestamp_table_config(name, "", forever, False, schema, keys=["id"], bin_width=dt.timedelta(minutes=1))
    return TimeKeyedView(config, owned=WHOLE_SPACE, store=store, tiers=tiers)


def _timed_rows(numbers: Numbers, *, minute: int) -> pa.Table:
    times = np.full(len(numbers), minute * _MINUTE_US, dtype=np.int64)
    return pa.table(
        {
            "id": from_numpy(_scattered(numbers), pa.int64()),
            TIME: from_numpy(times, TIMESTAMP),
            "value": from_numpy(numbers, pa.int64()),
        }
    )


def _scattered(numbers: Numbers) -> Numbers:
    return numbers * _SCATTER % (1 << 40)


def _name(digest: str) -> str:
    return f"data/{digest}.parquet"


def _put(uploads: tuple[Upload, ...], store: ObjectStore) -> None:
    for upload in uploads:
        store.put(upload.path, upload.content())
        upload.on_stored()


def _expect(what: str, actual: object, expected: object) -> None:
    if actual != expected:
        raise SystemExit(f"{what}: {actual} instead of {expected}")
