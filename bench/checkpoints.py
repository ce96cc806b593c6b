"""Caller's share of a checkpoint: processor time inside `TableManager.checkpoint`, and until it is durable.

Processor times, not times on the clock: other work on the machine does not change the shares.
"""

import datetime as dt
import statistics
import time

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bench.report import Report, smaller
from statebed.state import (
    CompactionMode,
    ManagerOptions,
    TableManager,
    TaskInfo,
    keyed_table_config,
    timestamp_table_config,
)
from statebed.state.memory.controller import MemoryController
from statebed.state.tiers.shared_tiers import Tiers
from statebed.storage import MemoryStore

_COLUMNS = pa.schema([("id", pa.int64()), ("fare", pa.int64()), ("tip", pa.float64()), ("city", pa.string())])
_BUDGET = 2 << 30
_MAX_SHARE = 0.25


def run(report: Report, *, quick: bool = False, only: str = "") -> None:
    """Share of the caller in the processor time of checkpoints of keyed and time-keyed tables."""
    count = 100_000 if quick else 1_000_000
    for kind in ("keyed", "time-keyed"):
        for changed, step in (("all rows", 1), ("every tenth row", 10)):
            case = f"{kind}, {count:,} rows, {changed} changed"
            if only in case:
                _measure(report, case, kind=kind, count=count, step=step)


def _measure(report: Report, case: str, *, kind: str, count: int, step: int) -> None:
    options = ManagerOptions(compaction=CompactionMode.OFF)
    hour = dt.timedelta(hours=1)
    config = (
        keyed_table_config("fares", "", ["id"], _COLUMNS)
        if kind == "keyed"
        else timestamp_table_config("fares", "", 24 * hour, False, _COLUMNS, keys=["id"], bin_width=hour)
    )
    tiers = Tiers(MemoryController(_BUDGET))
    with TableManager(
        TaskInfo("bench", "fares"), {"fares": config}, MemoryStore(), options=options, tiers=tiers
    ) as state:
        _write(state, kind, np.arange(count))
        shares = [_checkpointed(state, 1)]
        for epoch in range(2, 5):
            _write(state, kind, np.arange(0, count, step))
            shares.append(_checkpointed(state, epoch))
    caller, total = (statistics.median(seconds) for seconds in zip(*shares[1:], strict=True))
    target = 1 / _MAX_SHARE
    report.add(smaller(case, "whole checkpoint", "processor time", ours=caller, theirs=total, unit="us", target=target))


def _write(manager: TableManager, kind: str, ids: npt.NDArray[np.int64]) -> None:
    cities = pa.array(["Lisbon", "Oslo", "a city with a rather long name", "Rome"])
    order = np.random.default_rng(7).permutation(len(ids))
    ids = ids[order]
    rows = pa.table(
        {"id": ids, "fare": ids % 7, "tip": np.sqrt(ids.astype(np.float64)), "city": cities.take(pa.array(ids % 4))},
        schema=_COLUMNS,
    )
    if kind == "keyed":
        manager.get_keyed("fares").upsert(rows.select(["id"]), rows.drop_columns(["id"]))
        return
    times = pa.array(ids % 7_200_000_000, pa.timestamp("us", "UTC"))
    for start in range(0, rows.num_rows, 10_000):
        part = rows.append_column("_time", times).slice(start, 10_000)
        manager.get_time_keyed("fares").append(part)


def _checkpointed(manager: TableManager, epoch: int) -> tuple[float, float]:
    """Microseconds of processor time: of the caller, and of the whole process until the checkpoint is durable."""
    whole, caller = time.process_time(), time.thread_time()
    durable = manager.checkpoint(epoch)
    caller = time.thread_time() - caller
    durable.result(600)
    return caller * 1e6, (time.process_time() - whole) * 1e6
