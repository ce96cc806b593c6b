"""The streams that the queries read, and the rows that the generator makes for them.

A stream becomes a source of the flow when a query first asks for it, so a flow has those that it needs.
"""

import re
from collections.abc import Iterable
from functools import cached_property

import numpy as np
import pyarrow as pa

from statebed.demo.nexmark import AUCTION_SCHEMA, BID_SCHEMA, PERSON_SCHEMA, Nexmark
from statebed.flow import Flow, Stream

DELAY = "4 seconds"
"""Maximum lateness of events."""
ARRIVED = "arrived"
SOURCE_NAMES = ("person", "auction", "bid", "bid_on_arrival", "side_input")
SIDE_INPUT_KEYS = 10_000

_TIME = pa.timestamp("us", tz="UTC")


def _with_plain_names(schema: pa.Schema) -> pa.Schema:
    """Return the schema with date_time for dateTime."""
    return pa.schema([field.with_name(re.sub("([A-Z])", r"_\1", field.name).lower()) for field in schema])


PERSON = _with_plain_names(PERSON_SCHEMA)
AUCTION = _with_plain_names(AUCTION_SCHEMA)
BID = _with_plain_names(BID_SCHEMA)
BID_ON_ARRIVAL = BID.append(pa.field(ARRIVED, _TIME))
SIDE_INPUT = pa.schema([("key", pa.int64()), ("value", pa.string())])


class Sources:
    """The sources of one flow."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow

    def source(self, name: str, columns: pa.Schema, watermark: tuple[str, str] | None) -> Stream:
        """A new source of the flow."""
        return self._flow.source(name, columns, watermark=watermark)

    @cached_property
    def person(self) -> Stream:
        """Persons who sign up."""
        return self.source("person", PERSON, ("date_time", DELAY))

    @cached_property
    def auction(self) -> Stream:
        """Auctions that are offered."""
        return self.source("auction", AUCTION, ("date_time", DELAY))

    @cached_property
    def bid(self) -> Stream:
        """Bids for auctions."""
        return self.source("bid", BID, ("date_time", DELAY))

    @cached_property
    def bid_on_arrival(self) -> Stream:
        """Bids whose time is the time at which they are processed."""
        return self.source("bid_on_arrival", BID_ON_ARRIVAL, (ARRIVED, "0s"))

    @cached_property
    def side_input(self) -> Stream:
        """A table that does not change; it is fed once."""
        return self.source("side_input", SIDE_INPUT, None)


def rows_of(
    sources: Iterable[str], generator: Nexmark, *, first: int, count: int, now_us: int = 0
) -> dict[str, pa.Table]:
    """The rows of the events [first, first + count) for some sources; `now_us` is when they are processed.

    The side input comes with the first event.
    """
    makers = {
        "person": lambda: generator.persons(first=first, count=count).rename_columns(PERSON.names),
        "auction": lambda: generator.auctions(first=first, count=count).rename_columns(AUCTION.names),
        "bid": lambda: generator.bids(first=first, count=count).rename_columns(BID.names),
        "bid_on_arrival": lambda: _arriving(generator.bids(first=first, count=count), now_us),
        "side_input": lambda: side_input() if first == 0 else SIDE_INPUT.empty_table(),
    }
    return {name: makers[name]() for name in sources}


def side_input() -> pa.Table:
    """A text for each of the keys."""
    keys = np.arange(SIDE_INPUT_KEYS, dtype=np.int64)
    return pa.table({"key": keys, "value": [f"value {key}" for key in keys]}, schema=SIDE_INPUT)


def _arriving(bids: pa.Table, now_us: int) -> pa.Table:
    moments = pa.array(np.full(bids.num_rows, now_us, dtype=np.int64)).cast(_TIME)
    return pa.Table.from_arrays([*bids.columns, moments], schema=BID_ON_ARRIVAL)
