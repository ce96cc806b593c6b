"""An epoch that closes windows whose rows are not in memory, with and without prefetching them.

State is restored in each run, as a subtask on Spark restores it: from a store that takes some time to answer, or from
a local folder. The rows of the epoch arrive in batches, with a pause before each as there is between batches of Spark.
Runs with and without prefetching take turns; both must give the same results.
"""

import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterator
from unittest import mock

import numpy as np
import pyarrow as pa

from bench.report import Report, is_chosen, smaller
from statebed.aggregates.functions import count
from statebed.aggregates.functions import sum as sum_of
from statebed.arrays.columns import from_numpy
from statebed.arrays.key_hash import hash_columns
from statebed.format import checkpoint_pb2 as pb
from statebed.format.schema import KEY_HASH, TIME, TIMESTAMP
from statebed.operators import WindowAggregate, tumbling
from statebed.operators.operator import MAIN, Clock
from statebed.state import CompactionMode, ManagerOptions, TableManager, TaskInfo, TimeKeyedView, operator_entry
from statebed.state.memory.controller import MemoryController
from statebed.state.tiers.shared_tiers import Tiers
from statebed.storage import LocalStore, MemoryStore, ObjectStore

_MINUTE_US = 60_000_000
_EPOCHS = 6
"""Epochs that write the state, each a file."""
_ROUNDS = 5
_BATCHES = 10
_LATENCY_SECONDS = 0.02
_PAUSE_SECONDS = 0.02
_BUDGET = 1 << 30
_OPTIONS = ManagerOptions(compaction=CompactionMode.OFF)
_OPERATOR = WindowAggregate(
    operator_id="window",
    keys=(pa.field("k", pa.int64()),),
    aggregates=(count().bind("n"), sum_of("v").bind("total", input_types=(pa.int64(),))),
    window=tumbling("1 minute"),
)
_TASK = TaskInfo("bench", "window")


class _SlowStore(MemoryStore):
    """Answers reads after a while."""

    slow = False

    def get_range(self, path: str, start: int, length: int) -> bytes:
        if self.slow:
            time.sleep(_LATENCY_SECONDS)
        return super().get_range(path, start, length)


def run(report: Report, *, quick: bool = False, only: str = "") -> None:
    """Time of a step that closes windows, by where their rows are."""
    keys = 20_000 if quick else 200_000
    with tempfile.TemporaryDirectory() as folder:
        for case, store in (("store", _SlowStore()), ("local disk", LocalStore(folder))):
            if is_chosen(case, only):
                _measure(report, f"{_EPOCHS * keys:,} partials in the {case}", store, keys)


def _measure(report: Report, case: str, store: ObjectStore, keys: int) -> None:
    head: pb.CheckpointMetadata | None = None
    for epoch in range(1, _EPOCHS + 1):
        with _manager(store, head) as manager:
            _OPERATOR.step(manager, [iter([_rows(keys, epoch, 0)])], Clock(None, 0, epoch))
            done = manager.checkpoint(epoch).result(600)
        head = pb.CheckpointMetadata(job_id="bench", epoch=epoch, operators=[operator_entry([done])])
    if isinstance(store, _SlowStore):
        store.slow = True
    seconds: dict[bool, list[float]] = {True: [], False: []}
    answers = set()
    for _ in range(_ROUNDS):
        for prefetching in (True, False):
            with _without_prefetch() if not prefetching else contextlib.nullcontext(), _manager(store, head) as manager:
                batches = _arriving(keys)
                began = time.perf_counter()
                result = _OPERATOR.step(manager, [batches], Clock(0, _MINUTE_US, _EPOCHS + 1))
                seconds[prefetching].append(time.perf_counter() - began)
                rows = result.outputs[MAIN]
                answers.add((rows.num_rows, sum(rows["total"].to_pylist())))
    if len(answers) != 1:
        raise AssertionError(f"results differ with and without prefetching: {answers}")
    ours, theirs = (1e3 * statistics.median(seconds[prefetching]) for prefetching in (True, False))
    report.add(smaller(case, "without prefetching", "time of the step", ours=ours, theirs=theirs, unit="ms"))


def _manager(store: ObjectStore, head: pb.CheckpointMetadata | None) -> TableManager:
    return TableManager(
        _TASK,
        _OPERATOR.tables,
        store,
        restore_from=head,
        options=_OPTIONS,
        tiers=Tiers(MemoryController(_BUDGET)),
        combines=_OPERATOR.combines,
    )


def _rows(count: int, seed: int, minute: int) -> pa.RecordBatch:
    draw = np.random.default_rng(seed)
    keys = from_numpy(draw.permutation(count), pa.int64())
    times = from_numpy(minute * _MINUTE_US + draw.integers(0, _MINUTE_US, count), TIMESTAMP)
    hashes = from_numpy(hash_columns([keys]).view(np.int64), pa.int64())
    values = from_numpy(draw.integers(0, 1_000, count), pa.int64())
    columns = {KEY_HASH: hashes, TIME: times, "k": keys}
    schema = _OPERATOR.inputs[0].schema
    return pa.RecordBatch.from_arrays([columns.get(name, values) for name in schema.names], schema=schema)


def _arriving(keys: int) -> Iterator[pa.RecordBatch]:
    """Rows of the next minute, in batches."""
    rows = _rows(keys, 99, 1)
    size = -(-keys // _BATCHES)
    for start in range(0, keys, size):
        time.sleep(_PAUSE_SECONDS)
        yield rows.slice(start, size)


@contextlib.contextmanager
def _without_prefetch() -> Iterator[None]:
    with mock.patch.object(TimeKeyedView, "prefetch", return_value=[]):
        yield
