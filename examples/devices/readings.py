"""Sample readings: every device sends one in each round, and devices on a poor network send it again later."""

import datetime as dt
from pathlib import Path

import numpy as np
import pyarrow as pa

from examples.sample_files import add_parquet

START_US = int(dt.datetime(2026, 3, 1, tzinfo=dt.UTC).timestamp()) * 1_000_000
ROUND_US = 60_000_000
"""One round takes a minute; the second half of its readings is repeated in the next round."""


def add_readings(folder: Path, *, devices: int, rounds: int, seed: int = 1) -> int:
    """Add `rounds` files behind those of the folder; return the number of readings, repeated ones included."""
    first = len(list(folder.glob("*.parquet")))
    count = 0
    for number in range(first, first + rounds):
        rows = _round(devices, number, seed)
        if number:
            repeated = _round(devices, number - 1, seed)
            rows = pa.concat_tables([rows, repeated.slice(devices // 2)])
        add_parquet(folder, rows)
        count += rows.num_rows
    return count


def _round(devices: int, number: int, seed: int) -> pa.Table:
    chance = np.random.default_rng([seed, number])
    times = START_US + number * ROUND_US + chance.integers(0, ROUND_US, devices)
    return pa.table(
        {
            "device": chance.permutation(devices),
            "sequence": pa.array(np.full(devices, number)),
            "celsius": np.round(chance.normal(20, 5, devices), 2),
            "ts": pa.array(times, pa.timestamp("us", "UTC")),
        }
    )
