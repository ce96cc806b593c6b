"""Prices, limits and latencies of S3: published ones, and latencies measured at a real S3 server."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from statebed.storage import ObjectStore

PRICES_OF = "S3 Standard, US East (N. Virginia), list prices of March 2026"
PUT_DOLLARS = 0.005 / 1000
"""A PUT, COPY, POST or LIST request, also each part of a multipart upload."""
GET_DOLLARS = 0.0004 / 1000
"""A GET or HEAD request. DELETE requests and traffic within the region are free."""
STORED_DOLLARS = ((50e12, 0.023 / 1e9), (450e12, 0.022 / 1e9), (float("inf"), 0.021 / 1e9))
"""Dollars per byte and month, by tier: the first 50 TB, the next 450 TB, the rest."""
DAYS_A_MONTH = 30.4
PUTS_PER_SECOND = 3500
GETS_PER_SECOND = 5500
"""Requests per second that S3 guarantees for each partitioned prefix of a bucket."""


@dataclass(frozen=True)
class Latencies:
    """Seconds of a request: a fixed part, and a part per byte."""

    source: str
    put_seconds: float
    get_seconds: float
    list_page: float
    delete: float
    delete_page: float
    bytes_per_second: float

    def put(self, size: int) -> float:
        return self.put_seconds + size / self.bytes_per_second

    def get(self, size: int) -> float:
        return self.get_seconds + size / self.bytes_per_second


PUBLISHED = Latencies(
    source="published by AWS: 100 to 200 ms to the first byte of small objects, 90 MB/s per connection",
    put_seconds=0.15,
    get_seconds=0.15,
    list_page=0.2,
    delete=0.15,
    delete_page=0.5,
    bytes_per_second=90e6,
)
"""The middle of what AWS's performance guidelines name; listings and bulk deletes are our estimates."""


def stored_dollars(size: float) -> float:
    """Return the dollars that `size` bytes cost per day."""
    dollars, rest = 0.0, size
    for tier_bytes, price in STORED_DOLLARS:
        dollars += min(rest, tier_bytes) * price
        rest -= min(rest, tier_bytes)
    return dollars / DAYS_A_MONTH


def measure(store: ObjectStore, *, source: str, times: int = 30) -> Latencies:
    """Measure the latencies of a store: medians of small requests, and the bandwidth of one large object."""
    small, large = b"x" * 4096, b"x" * (16 << 20)
    paths = [f"latency/{number:04}" for number in range(times)]
    puts = [_seconds(partial(store.put, path, small)) for path in paths]
    gets = [_seconds(partial(store.get, path)) for path in paths]
    lists = [_seconds(lambda: list(store.list("latency"))) for _ in range(5)]
    deletes = [_seconds(partial(store.delete, path)) for path in paths[: times // 2]]
    many = _seconds(lambda: store.delete_many(paths[times // 2 :]))
    store.put("latency/large", large)
    get, whole = statistics.median(gets), min(_seconds(lambda: store.get("latency/large")) for _ in range(3))
    store.delete("latency/large")
    return Latencies(
        source=source,
        put_seconds=statistics.median(puts),
        get_seconds=get,
        list_page=statistics.median(lists),
        delete=statistics.median(deletes),
        delete_page=many,
        bytes_per_second=len(large) / max(whole - get, 1e-6),
    )


def _seconds(act: Callable[[], object]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start
