"""A source of the tests' own, written with Spark's Python data source API: rows by their number.

The same number is always the same row, so any range can be read again. How many rows there are stands in a file, which
a test lets grow. Spark's planning worker gets this module by value, so it needs nothing of the tests.
"""

import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

START = dt.datetime(2024, 3, 10, 6, 30, tzinfo=dt.UTC)
CUSTOMERS = ["ann", "bob", "cid", "émile", "zoë", "yan", "wim", "vera"]
LIMIT = "limit.json"


def order(number: int) -> tuple[Any, ...]:
    """Orders come every two seconds, up to half a minute out of order."""
    at = START + dt.timedelta(seconds=2 * number + number * 7919 % 30)
    return (number, CUSTOMERS[number * 31 % len(CUSTOMERS)], number * 17 % 5000, at)


def payment(number: int) -> tuple[Any, ...]:
    """Payments for recent orders, some of them too late or too early for a pair."""
    at = START + dt.timedelta(seconds=2 * number + number * 104_729 % 45)
    return (max(0, number - number * 13 % 90), number * 23 % 5000 - 100, at)


def last(kind: str, number: int) -> tuple[Any, ...]:
    """Return a row an hour later, of no customer, so that every window closes."""
    at = START + dt.timedelta(seconds=2 * number, hours=1)
    return (-1, "nobody", 0, at) if kind == "orders" else (-2, 0, at)


def rows(kind: str, start: int, end: int, *, last_number: int | None) -> Iterator[tuple[Any, ...]]:
    """The rows from `start` up to but not including `end`."""
    make = order if kind == "orders" else payment
    for number in range(start, end):
        yield last(kind, number) if number == last_number else make(number)


class Numbered(DataSource):
    """`spark.readStream.format("numbered").option("kind", "orders").option("folder", ...)`."""

    @classmethod
    def name(cls) -> str:
        return "numbered"

    def simpleStreamReader(self, schema: Any) -> "NumberedReader":  # noqa: N802 - Spark's name
        return NumberedReader(self.options["kind"], Path(self.options["folder"]))


class NumberedReader(SimpleDataSourceStreamReader):
    """Reads from a number on."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind = kind
        self._limit = folder / LIMIT

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"number": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[Any, ...]], dict[str, int]]:
        available = json.loads(self._limit.read_text())["rows"]
        end = {"number": max(start["number"], available)}
        return self.readBetweenOffsets(start, end), end

    def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[tuple[Any, ...]]:  # noqa: N802 - Spark's name
        last_number = json.loads(self._limit.read_text())["last"]
        # Spark copies the iterator, which a generator does not allow.
        return iter(list(rows(self._kind, start["number"], end["number"], last_number=last_number)))
