"""A process that takes ten times its budget, and prints what it cost: run by test_memory_measured.

Arguments: the folder to spill to, the budget in bytes, the kind of work ("append" or "lookups").
"""

import gc
import json
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import from_numpy
from statebed.format import checkpoint_pb2 as pb
from statebed.format.schema import BIN, KEY_HASH, SEQUENCE, TIME, TIMESTAMP, assign_field_ids
from statebed.format.segment import SegmentSpec, segment_schema, sort_segment
from statebed.state.memory.controller import MemoryController
from statebed.state.memory.sizes import held_bytes
from statebed.state.tiers.selection import Selection
from statebed.state.tiers.shared_tiers import Tiers
from statebed.state.time_keyed.append_buffer import AppendBuffer

BATCH_ROWS = 20_000
MINUTE = 60_000_000
COLUMNS = assign_field_ids(pa.schema([("driver", pa.int64()), ("fare", pa.float64())]))
SPEC = SegmentSpec(
    "rides", 0, segment_schema(COLUMNS, sort_order=pb.BIN_FIRST, key_columns=["driver"]), pb.BIN_FIRST, ("driver",)
)


def batch(start: int) -> pa.Table:
    numbers = np.arange(start, start + BATCH_ROWS, dtype=np.int64)
    hashes = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    columns = {
        BIN: from_numpy(numbers // (8 * BATCH_ROWS) * MINUTE, TIMESTAMP),
        KEY_HASH: from_numpy(hashes, pa.uint64()),
        "driver": from_numpy(numbers, pa.int64()),
        TIME: from_numpy(numbers // (8 * BATCH_ROWS) * MINUTE, TIMESTAMP),
        SEQUENCE: from_numpy(numbers.astype(np.uint64), pa.uint64()),
        "fare": from_numpy((hashes >> np.uint64(11)) / 8, pa.float64()),
    }
    return pa.table({name: columns[name] for name in SPEC.schema.names})


def anonymous() -> int:
    """Anonymous and shared memory of this process now; clean pages of mapped files are not in it."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * sum(int(lines[name].split()[0]) for name in ("RssAnon", "RssShmem"))


class Watch(threading.Thread):
    """Looks all the time, so that what is held between two appends is seen, too."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.001):
            self.peak = max(self.peak, anonymous())


def count(buffer: AppendBuffer, selection: Selection) -> int:
    segments, loose = buffer.pinned()
    found = 0
    for segment in segments:
        found += segment.read(selection).num_rows
        segment.unpin()
    return int(found + sum(selection.apply(piece).num_rows for piece in loose))


def main() -> None:
    folder, budget, work = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    memory = MemoryController(budget)
    tiers = Tiers(memory, folder=folder)
    buffer = AppendBuffer(tiers, spec=SPEC, owner="rides")
    # What numpy, pyarrow and the Parquet writer take once is not the engine's state.
    warm = tiers.segment(sort_segment(batch(0), spec=SPEC), spec=SPEC, owner="warm")
    warm.spill()
    warm.read()
    warm.close()
    gc.collect()
    base = anonymous()
    watch = Watch()
    watch.start()
    taken = total = checked = 0
    while total < 10 * budget:
        rows = batch(taken)
        total += held_bytes(rows)
        buffer.append(rows)
        taken += BATCH_ROWS
        if work == "lookups" and taken % (10 * BATCH_ROWS) == 0:
            early = Selection(columns=("driver",), end_us=MINUTE)
            checked += count(buffer, early)
    found = count(buffer, Selection(columns=("driver",)))
    watch.done.set()
    watch.join(10)
    report = {
        "grown": watch.peak - base,
        "state": total,
        "batch": held_bytes(batch(0)),
        "segment": memory.segment_bytes,
        "rows": taken,
        "found": found,
        "checked": checked,
        "peak_charged": memory.snapshot().peak,
        "events": dict(memory.snapshot().events),
    }
    tiers.close()
    print(json.dumps(report))  # noqa: T201 - the parent reads it


if __name__ == "__main__":
    main()
