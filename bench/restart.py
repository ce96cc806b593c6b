"""The first epoch after a restart that has lost every cache: how much of the state it reads, and how long it takes.

State is built in a local folder or on a real S3 server (seaweedfs on loopback) by the subtasks of one operator, and
compacted. Then all subtasks start on a new host, whose cache is empty, with the same parallelism or another one. The
rows of the epoch belong to 1 % of the keys:

- *random keys*: each row group, which has up to 131,072 rows, contains some of them, so everything is read;
- *keys of the last epochs*: keys that were written last, as in a state with hot keys, are found in the newest files;
- *new windows*: a window only appends, so it reads nothing before it closes.

The output of the running aggregate is checked; a window emits nothing before it closes. The bytes read are compared
with those of all live files.
"""

import contextlib
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.report import Figure, Report, is_chosen, smaller
from bench.s3_server import s3_store
from bench.subtask import OPERATORS
from statebed.arrays.columns import from_numpy
from statebed.arrays.key_hash import hash_columns
from statebed.checkpoint.objects import fetch_subtask
from statebed.format import checkpoint_pb2 as pb
from statebed.format.ranges import in_range, owned_range
from statebed.operators.operator import Operator
from statebed.state import MemoryController, Tiers
from statebed.state.host_cache import HostCache
from statebed.storage import LocalStore, ObjectStore
from statebed.subtasks import SubtaskReport, SubtaskTask, run_subtask
from statebed.subtasks.compaction import CompactionTask, compact_subtask

Ids = npt.NDArray[np.int64]
AGGREGATE, WINDOW = "updating aggregate", "tumbling window"
_BEFORE = 4
"""Parallelism that writes the state."""
_AFTER = (4, 6)
"""Parallelism after the restart: the same, and one whose ranges cut across files."""
_EPOCHS = 12
_COMPACTED_AFTER = 8
"""Epoch after which the files are compacted; those of later epochs are small."""
_LATER_SHARE = 0.01
"""Share of the keys that each epoch after the compaction writes."""
_TOUCHED_SHARE = 0.01
_GOAL_SHARE = 0.05
_EPOCH_US = 1_000_000
_BUILD_BYTES = 2 << 30
_BUDGET_BYTES = 256 << 20
_CACHE_BYTES = 16 << 30
_QUICK_KEYS = 6_000_000
_KEYS = 270_000_000
"""About 4 GB of state."""

_OUTPUT = pa.schema([("n", pa.int64()), ("_weight", pa.int64())])


class CountingStore:
    """Adds up the bytes that are read of some objects, and passes everything on. Thread-safe."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self.watched: Collection[str] = ()
        self.bytes_read = 0
        self.requests = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, path: str) -> bytes:
        return self._counted(path, self._store.get(path))

    def get_range(self, path: str, start: int, length: int) -> bytes:
        return self._counted(path, self._store.get_range(path, start, length))

    def _counted(self, path: str, data: bytes) -> bytes:
        if path in self.watched:
            with self._lock:
                self.bytes_read += len(data)
                self.requests += 1
        return data


@dataclass(frozen=True)
class FirstEpoch:
    """The first epoch after a restart, of all subtasks one after the other."""

    seconds: float
    bytes_read: int
    requests: int
    state_bytes: int

    @property
    def share(self) -> float:
        return self.bytes_read / self.state_bytes


class StoredState:
    """State of one operator in a store."""

    def __init__(self, operator: Operator, store: CountingStore, keys: int, folder: Path) -> None:
        self._operator = operator
        self._store = store
        self._keys = keys
        self._folder = folder
        self._references: tuple[bytes, ...] = ()
        self._edits: list[tuple[bytes, ...]] = [()] * _BEFORE
        self._epoch = 0
        self._last: Ids = np.zeros(0, dtype=np.int64)
        """Keys of the newest epochs."""

    def build(self) -> None:
        """Write every key once, compact the files, and write some of the keys again."""
        draw = np.random.default_rng(self._keys)
        ids = draw.permutation(self._keys)
        with contextlib.closing(Tiers(MemoryController(_BUILD_BYTES), folder=self._folder / "build")) as tiers:
            for part in np.array_split(ids, _COMPACTED_AFTER):
                self._write(part, tiers)
            self._compact(tiers)
            for _ in range(_EPOCHS - _COMPACTED_AFTER):
                last = draw.integers(0, self._keys, int(self._keys * _LATER_SHARE))
                self._last = np.append(self._last, last)
                self._write(last, tiers)

    def touched(self, pattern: str) -> Ids:
        """Return 1 % of the keys: those of the last epochs, or random ones."""
        count = int(self._keys * _TOUCHED_SHARE)
        draw = np.random.default_rng(count)
        if pattern == "keys of the last epochs":
            return draw.permutation(np.unique(self._last))[:count]
        return draw.choice(self._keys, count, replace=False)

    def restart(self, ids: Ids, parallelism: int) -> FirstEpoch:
        """Run one epoch without any cache; its results are dropped, so that it can be run again."""
        files = self._live_files()
        self._store.watched = files.keys()
        self._store.bytes_read = self._store.requests = 0
        seconds, outputs = 0.0, [_OUTPUT.empty_table()]
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            cache = HostCache(Path(folder) / "cache", _CACHE_BYTES)
            for index, batch in enumerate(self._batches(ids, parallelism)):
                tiers = Tiers(MemoryController(_BUDGET_BYTES), folder=Path(folder) / f"spill-{index}")
                with contextlib.closing(tiers):
                    start = time.perf_counter()
                    report = self._run(index, parallelism, batch, tiers, cache)
                    seconds += time.perf_counter() - start
                outputs += self._outputs(report)
        read, requests = self._store.bytes_read, self._store.requests
        self._store.watched = ()
        if self._is_changelog:
            _check(pa.concat_tables(outputs), ids)
        return FirstEpoch(seconds, read, requests, sum(files.values()))

    def _outputs(self, report: SubtaskReport) -> list[pa.Table]:
        files = [pa.BufferReader(self._store.get(file.path)) for file in report.outbox]
        return [pq.read_table(file, columns=_OUTPUT.names).cast(_OUTPUT) for file in files if self._is_changelog]

    @property
    def _is_changelog(self) -> bool:
        return self._operator is OPERATORS[AGGREGATE]

    def _write(self, ids: Ids, tiers: Tiers) -> None:
        self._epoch += 1
        reports = [
            self._run(index, _BEFORE, batch, tiers, None) for index, batch in enumerate(self._batches(ids, _BEFORE))
        ]
        self._references = tuple(report.reference.SerializeToString() for report in reports)
        self._edits = [()] * _BEFORE

    def _compact(self, tiers: Tiers) -> None:
        for index, reference in enumerate(self._references):
            task = CompactionTask(
                job_id="bench",
                run=1,
                epoch=self._epoch,
                operator=self._operator,
                parallelism=_BEFORE,
                reference=reference,
                epoch_time_us=self._epoch * _EPOCH_US,
                max_bytes=1 << 40,
            )
            self._edits[index] = compact_subtask(task, self._store, tiers=tiers, cache=None).edits

    def _run(
        self, index: int, parallelism: int, batch: pa.RecordBatch, tiers: Tiers, cache: HostCache | None
    ) -> SubtaskReport:
        building = cache is None
        task = SubtaskTask(
            job_id="bench",
            epoch=self._epoch if building else self._epoch + 1,
            operator=self._operator,
            subtask_index=index,
            parallelism=parallelism,
            base=self._references,
            late_us=None,
            watermark_us=None,
            epoch_time_us=self._epoch * _EPOCH_US,
            edits=self._edits[index] if building else (),
        )
        return run_subtask(task, self._store, [batch], tiers=tiers, cache=cache)

    def _batches(self, ids: Ids, parallelism: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of each subtask."""
        hashes = hash_columns([pa.array(ids)])
        times = np.full(len(ids), self._epoch * _EPOCH_US)
        schema = self._operator.inputs[0].schema
        for index in range(parallelism):
            owned = np.flatnonzero(in_range(hashes, owned_range(index, parallelism)))
            columns: list[npt.NDArray[Any]] = [hashes[owned], times[owned], ids[owned], ids[owned] % 97]
            arrays = [from_numpy(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _live_files(self) -> dict[str, int]:
        """Return the sizes of all live data files."""
        files: dict[str, int] = {}
        for reference in self._references:
            metadata = fetch_subtask(self._store, pb.SubtaskReference.FromString(reference))
            for table in metadata.tables.values():
                files |= {file.path: file.size for part in table.subtasks.values() for file in part.files}
        return files


def _check(output: pa.Table, ids: Ids) -> None:
    """Check that each touched key had a result before, and that the counts have grown by the rows of the epoch."""
    replaced = pc.sum(pc.less(output["_weight"], 0)).as_py() or 0
    grown = pc.sum(pc.multiply(output["n"], output["_weight"])).as_py() or 0
    if (replaced, grown) != (len(np.unique(ids)), len(ids)):
        raise SystemExit(f"restart: {replaced:,} results were replaced and counts grew by {grown:,}; {len(ids):,} rows")


PATTERNS = (
    (AGGREGATE, "random keys"),
    (AGGREGATE, "keys of the last epochs"),
    (WINDOW, "new windows"),
)


def run(report: Report, *, quick: bool, only: str = "") -> int | None:
    """Measure every case whose name contains `only`; return an exit status if there is none."""
    keys = _QUICK_KEYS if quick else _KEYS
    cases = [(place, *pattern) for place in ("disk", "S3") for pattern in PATTERNS]
    chosen = [case for case in cases if is_chosen(_name(*case), only)]
    if not chosen:
        print("no such case; there are:", *(_name(*case) for case in cases), sep="\n  ", file=sys.stderr)
        return 2
    for place in dict.fromkeys(place for place, _, _ in chosen):
        for operator in dict.fromkeys(operator for at, operator, _ in chosen if at == place):
            patterns = [pattern for at, of, pattern in chosen if (at, of) == (place, operator)]
            with tempfile.TemporaryDirectory(prefix="statebed-bench-") as folder, _store(place, Path(folder)) as store:
                state = StoredState(OPERATORS[operator], CountingStore(store), keys, Path(folder))
                state.build()
                for pattern in patterns:
                    _measure(report, state, _name(place, operator, pattern), pattern)
    return None


def _name(place: str, operator: str, pattern: str) -> str:
    return f"{operator} on {place}, {pattern}"


@contextlib.contextmanager
def _store(place: str, folder: Path) -> Iterator[ObjectStore]:
    if place == "disk":
        yield LocalStore(str(folder / "state"))
        return
    (folder / "server").mkdir()
    with s3_store(folder / "server", "restart", volume_mb=1024) as store:
        yield store


def _measure(report: Report, state: StoredState, case: str, pattern: str) -> None:
    ids = state.touched(pattern)
    for parallelism in _AFTER:
        first = state.restart(ids, parallelism)
        named = f"{case}, parallelism {_BEFORE} to {parallelism}"
        if first.bytes_read:  # nothing has no ratio
            report.add(
                smaller(
                    named,
                    "5 % of the state",
                    "bytes read",
                    ours=first.bytes_read,
                    theirs=_GOAL_SHARE * first.state_bytes,
                    unit="bytes",
                    target=1.0,
                )
            )
        report.figure(Figure(named, "share of the state that is read", 100 * first.share, "%"))
        report.figure(Figure(named, "first epoch of all subtasks", first.seconds, "s"))
        report.note(f"  {first.requests} reads, state of {first.state_bytes / 1e9:.2f} GB, {len(ids):,} rows")
