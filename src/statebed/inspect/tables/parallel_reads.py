"""Concurrent execution of many small reads of a store."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

A = TypeVar("A")
T = TypeVar("T")

READS_AT_ONCE = 16


def map_concurrently(function: Callable[[A], T], arguments: Iterable[A]) -> list[T]:
    """Call the function for all items concurrently and return the results in order."""
    items = list(arguments)
    if len(items) <= 1:
        return [function(item) for item in items]
    with ThreadPoolExecutor(min(READS_AT_ONCE, len(items)), thread_name_prefix="statebed-read") as pool:
        return list(pool.map(function, items))
