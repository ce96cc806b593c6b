"""Sample purchases: a few customers buy often, most of them seldom."""

import datetime as dt
from pathlib import Path

import numpy as np
import pyarrow as pa

from examples.sample_files import add_parquet

START_US = int(dt.datetime(2026, 3, 1, tzinfo=dt.UTC).timestamp()) * 1_000_000
HOUR_US = 3_600_000_000
PURCHASES_PER_FILE = 2_000
CATEGORIES = np.array(["books", "garden", "music", "shoes", "toys"])


def add_purchases(folder: Path, *, customers: int, files: int, seed: int = 1) -> int:
    """Add `files` files of one hour each behind those of the folder; return the number of purchases."""
    first = len(list(folder.glob("*.parquet")))
    for number in range(first, first + files):
        chance = np.random.default_rng([seed, number])
        buyers = (chance.power(0.4, PURCHASES_PER_FILE) * customers).astype(int)
        times = START_US + number * HOUR_US + chance.integers(0, HOUR_US, PURCHASES_PER_FILE)
        add_parquet(
            folder,
            pa.table(
                {
                    "customer": [f"customer-{buyer}" for buyer in buyers],
                    "category": chance.choice(CATEGORIES, PURCHASES_PER_FILE),
                    "cents": chance.integers(100, 50_000, PURCHASES_PER_FILE),
                    "ts": pa.array(times, pa.timestamp("us", "UTC")),
                }
            ),
        )
    return files * PURCHASES_PER_FILE
