"""The stores that the engine benchmark compares, each doing the same: value of key += amount, for a batch of rows.

Every store starts from the same rows, in which keys may repeat; adding up the amounts of equal keys is part of the
work that is timed. Keys come in the form that each store likes best, made beforehand. Baselines are written as their
users would write them at their best: batches folded by Arrow's group-by, whole batches through their bulk calls, no
write-ahead log, no fsync.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any, Protocol, cast

import duckdb
import lmdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import rocksdict

from bench.workload import Batch
from statebed.arrays.key_hash import hash_columns
from statebed.format.ranges import WHOLE_SPACE
from statebed.state import KeyedView, Merge, keyed_table_config, merge_columns
from statebed.storage import MemoryStore

Values = npt.NDArray[np.int64]
_LMDB_BYTES = 32 << 30
_SUM = merge_columns(value=Merge.SUM)


class Store(Protocol):
    """One contestant."""

    name: str

    def apply(self, batch: Batch) -> None:
        """Add each row's amount to the value of its key; a key without a value starts at 0."""

    def checksum(self) -> tuple[int, int]:
        """Return the number and the sum of all values."""

    def values(self, batch: Batch) -> Values:
        """The values of the keys of a batch, row by row."""

    def close(self) -> None: ...


class Statebed:
    """Keyed view of statebed."""

    name = "statebed"

    def __init__(self, keys: pa.Schema) -> None:
        schema = pa.schema([*keys, pa.field("value", pa.int64(), nullable=False)])
        config = keyed_table_config("bench", "", keys.names, schema)
        self._view = KeyedView(config, owned=WHOLE_SPACE, store=MemoryStore("bench"), hash_function=hash_columns)

    def apply(self, batch: Batch) -> None:
        amounts = pa.table([pa.array(batch.amounts)], schema=self._view.table.value_schema)
        self._view.merge(batch.keys, amounts, _SUM)

    def checksum(self) -> tuple[int, int]:
        parts = list(self._view.scan())
        return sum(part.num_rows for part in parts), sum(pc.sum(part["value"]).as_py() for part in parts)

    def values(self, batch: Batch) -> Values:
        values, exist = self._view.get(batch.keys)
        assert exist.all()
        return np.asarray(values["value"].combine_chunks())

    def close(self) -> None:
        pass


class Rocks:
    """RocksDB through rocksdict: multi-get and write batches, no write-ahead log."""

    name = "rocksdict"

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="bench-rocks-")
        # Its type stubs call the property `disable_wal` a method, and know no lists of bytes.
        self._db = cast("Any", rocksdict.Rdict(self._folder, rocksdict.Options(raw_mode=True)))
        self._options = cast("Any", rocksdict.WriteOptions())
        self._options.disable_wal = True

    def apply(self, batch: Batch) -> None:
        keys, sums = _folded(batch)
        old = _numbers(self._db.get(keys))
        new = (old + sums).tobytes()
        writes = rocksdict.WriteBatch(raw_mode=True)
        for index, key in enumerate(keys):
            writes.put(key, new[8 * index : 8 * index + 8])
        self._db.write(writes, self._options)

    def checksum(self) -> tuple[int, int]:
        values = np.frombuffer(b"".join(self._db.values()), dtype=np.int64)
        return len(values), int(values.sum())

    def values(self, batch: Batch) -> Values:
        return _numbers(self._db.get(batch.key_bytes))

    def close(self) -> None:
        self._db.close()
        shutil.rmtree(self._folder)


class Lmdb:
    """LMDB: one transaction per batch, cursors' bulk calls, no sync."""

    name = "lmdb"

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="bench-lmdb-")
        path = str(Path(self._folder) / "db")
        self._env = lmdb.open(path, map_size=_LMDB_BYTES, sync=False, metasync=False, writemap=True)

    def apply(self, batch: Batch) -> None:
        keys, sums = _folded(batch)
        with self._env.begin(write=True) as transaction:
            cursor = transaction.cursor()
            held = dict(cursor.getmulti(keys))
            new = (_numbers([held.get(key) for key in keys]) + sums).tobytes()
            cursor.putmulti([(key, new[8 * index : 8 * index + 8]) for index, key in enumerate(keys)])

    def checksum(self) -> tuple[int, int]:
        with self._env.begin() as transaction:
            cursor = transaction.cursor()
            cursor.first()
            values = np.frombuffer(b"".join(cursor.iternext(keys=False, values=True)), dtype=np.int64)
        return len(values), int(values.sum())

    def values(self, batch: Batch) -> Values:
        with self._env.begin() as transaction:
            return _numbers([transaction.get(key) for key in batch.key_bytes])

    def close(self) -> None:
        self._env.close()
        shutil.rmtree(self._folder)


class Dict:
    """A Python dict."""

    name = "dict"

    def __init__(self) -> None:
        self._values: dict[object, int] = {}

    def apply(self, batch: Batch) -> None:
        values = self._values
        for key, amount in zip(batch.key_objects, batch.amounts.tolist(), strict=True):
            values[key] = values.get(key, 0) + amount

    def checksum(self) -> tuple[int, int]:
        return len(self._values), sum(self._values.values())

    def values(self, batch: Batch) -> Values:
        return np.array([self._values[key] for key in batch.key_objects], dtype=np.int64)

    def close(self) -> None:
        self._values.clear()


class DuckDb:
    """DuckDB in memory: UPDATE ... FROM the folded batch, then INSERT of keys that are new."""

    name = "duckdb"

    def __init__(self, keys: pa.Schema) -> None:
        self._db = duckdb.connect(config={"threads": 2})
        columns = ", ".join(f'"{key.name}" {"BIGINT" if pa.types.is_integer(key.type) else "VARCHAR"}' for key in keys)
        self._keys = ", ".join(f'"{name}"' for name in keys.names)
        self._same = " AND ".join(f'state."{name}" = folded."{name}"' for name in keys.names)
        self._db.execute(f"CREATE TABLE state ({columns}, value BIGINT)").fetchall()

    def apply(self, batch: Batch) -> None:
        folded = self._fold(batch)
        updated = self._count(f"UPDATE state SET value = value + folded.amount FROM folded WHERE {self._same}")  # noqa: S608  # names of columns
        if updated < folded:
            self._count(f"INSERT INTO state SELECT folded.* FROM folded ANTI JOIN state ON {self._same}")  # noqa: S608  # as above

    def checksum(self) -> tuple[int, int]:
        ((rows, total),) = self._db.execute("SELECT count(*), sum(value)::BIGINT FROM state").fetchall()
        return int(rows), int(total)

    def values(self, batch: Batch) -> Values:
        self._db.register("incoming", batch.keys.append_column("row", pa.array(np.arange(batch.keys.num_rows))))
        query = f"SELECT state.value FROM incoming JOIN state USING ({self._keys}) ORDER BY incoming.row"  # noqa: S608  # as above
        return np.asarray(self._db.execute(query).fetchnumpy()["value"])

    def close(self) -> None:
        self._db.close()

    def _fold(self, batch: Batch) -> int:
        self._db.register("incoming", batch.keys.append_column("amount", pa.array(batch.amounts)))
        return self._count(
            f"CREATE OR REPLACE TEMP TABLE folded AS SELECT {self._keys}, sum(amount)::BIGINT AS amount "  # noqa: S608  # as above
            f"FROM incoming GROUP BY {self._keys}"
        )

    def _count(self, statement: str) -> int:
        """Run a statement to its end, and give the number of rows that it made."""
        ((count,),) = self._db.execute(statement).fetchall()
        return int(count)


def _folded(batch: Batch) -> tuple[list[bytes], Values]:
    """Each key once, with the sum of its amounts: twice as fast as a loop over a dict."""
    rows = pa.table({"key": batch.packed_keys, "amount": pa.array(batch.amounts)})
    sums = rows.group_by("key", use_threads=False).aggregate([("amount", "sum")])
    return sums["key"].to_pylist(), np.asarray(sums["amount_sum"].combine_chunks())


def _numbers(values: list[bytes | None]) -> Values:
    missing = bytes(8)
    return np.frombuffer(b"".join(missing if value is None else value for value in values), dtype=np.int64)
