"""Sample clicks: visitors who read a few pages, leave, and come back hours later. Up to five minutes out of order."""

import datetime as dt
import random
from pathlib import Path

import pyarrow as pa

from examples.sample_files import add_parquet

START = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
PAGES = ("/", "/shoes", "/shirts", "/cart", "/checkout", "/help")
HOURS_PER_FILE = 2


def add_clicks(folder: Path, *, users: int, files: int, seed: int = 1) -> int:
    """Add `files` files of two hours each behind those of the folder; return the number of clicks."""
    first = len(list(folder.glob("*.parquet")))
    count = 0
    for number in range(first, first + files):
        rows = _two_hours(random.Random(f"{seed} {number}"), START + dt.timedelta(hours=HOURS_PER_FILE * number), users)
        add_parquet(folder, rows)
        count += rows.num_rows
    return count


def _two_hours(chance: random.Random, begin: dt.datetime, users: int) -> pa.Table:
    clicks = []
    for user in chance.sample(range(users), users // 2):
        at = begin + dt.timedelta(seconds=chance.randrange(3600))
        for _ in range(chance.randrange(1, 12)):
            clicks.append((f"user-{user}", chance.choice(PAGES), at))
            at += dt.timedelta(seconds=chance.randrange(1, 900))
    # Sorted by arrival: each click may overtake those of the five minutes before it.
    clicks.sort(key=lambda click: click[2] + dt.timedelta(seconds=chance.randrange(300)))
    user_id, page, ts = zip(*clicks, strict=True)
    return pa.table({"user_id": user_id, "page": page, "ts": pa.array(ts, pa.timestamp("us", "UTC"))})
