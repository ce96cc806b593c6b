"""Nexmark events: persons, auctions and bids of an online auction, as Arrow tables.

Of every 50 events one is a person, three are auctions and 46 are bids, in this order; event n belongs to group n // 50.
References follow the published hot ratios: one bid in two goes to the hot auction, three auctions in four are from the
hot seller, three bids in four are from the hot bidder. The rest is spread over the 100 auctions in flight and the 1000
active people. One departure from the published generator: references only point to existing ids (there, up to ten
future ids may be referenced).

Every value depends on the seed and the event number alone, so ranges can be generated separately and in any order.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statebed.demo.counters import Counters, Integers
from statebed.errors import InputError

GROUP = 50
PERSONS_PER_GROUP = 1
AUCTIONS_PER_GROUP = 3
BIDS_PER_GROUP = GROUP - PERSONS_PER_GROUP - AUCTIONS_PER_GROUP
HOT_AUCTION_RATIO = 2
HOT_SELLER_RATIO = 4
HOT_BIDDER_RATIO = 4
HOT_CHANNEL_RATIO = 2
HOT_STRIDE = 100
"""The hot auction, seller or bidder is the newest one whose number is a multiple of this."""
AUCTIONS_IN_FLIGHT = 100
ACTIVE_PEOPLE = 1000
FIRST_PERSON = 1000
FIRST_AUCTION = 1000
FIRST_CATEGORY = 10
CATEGORIES = 5
CHANNELS = 10_000
PERSON_BYTES = 200
AUCTION_BYTES = 500
BID_BYTES = 100
DEFAULT_FIRST_TIME_US = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z

_TIME = pa.timestamp("us", tz="UTC")
_PIECE = 200_000  # events per chunk: bounds the memory of a large range
_HOT_CHANNELS = ["Google", "Facebook", "Baidu", "Apple"]
_FIRST_NAMES = [
    "Peter",
    "Paul",
    "Luke",
    "John",
    "Saul",
    "Vicky",
    "Kate",
    "Julie",
    "Sarah",
    "Deiter",
    "Walter",
]
_LAST_NAMES = ["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"]
_STATES = ["AZ", "CA", "ID", "OR", "WA", "WY"]
_CITIES = [
    "Phoenix",
    "Los Angeles",
    "San Francisco",
    "Boise",
    "Portland",
    "Bend",
    "Redmond",
    "Seattle",
    "Kent",
    "Cheyenne",
]

PERSON_SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("emailAddress", pa.string()),
        ("creditCard", pa.string()),
        ("city", pa.string()),
        ("state", pa.string()),
        ("dateTime", _TIME),
        ("extra", pa.string()),
    ]
)
AUCTION_SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("itemName", pa.string()),
        ("description", pa.string()),
        ("initialBid", pa.int64()),
        ("reserve", pa.int64()),
        ("dateTime", _TIME),
        ("expires", _TIME),
        ("seller", pa.int64()),
        ("category", pa.int64()),
        ("extra", pa.string()),
    ]
)
BID_SCHEMA = pa.schema(
    [
        ("auction", pa.int64()),
        ("bidder", pa.int64()),
        ("price", pa.int64()),
        ("channel", pa.string()),
        ("url", pa.string()),
        ("dateTime", _TIME),
        ("extra", pa.string()),
    ]
)


@dataclass(frozen=True)
class Nexmark:
    """A stream of events that is fully determined by these four numbers.

    >>> Nexmark(seed=7).bids(first=0, count=50).num_rows
    46
    """

    seed: int = 1
    events_per_second: int = 10_000
    """Events per second of event time."""
    out_of_order_us: int = 0
    """Maximum random amount by which the time of each event is moved back."""
    first_time_us: int = DEFAULT_FIRST_TIME_US

    def __post_init__(self) -> None:
        if self.events_per_second < 1:
            raise InputError(
                f"`events_per_second` must be at least 1, got {self.events_per_second}",
                fix="pass a whole number of 1 or more",
            )
        if not 0 <= self.out_of_order_us < 2**32:
            raise InputError(
                f"`out_of_order_us` must be from 0 to 4294967295, got {self.out_of_order_us}",
                fix="pass 0 or more, below 4294967296 (71 minutes)",
            )

    def persons(self, *, first: int, count: int) -> Any:
        """Return the persons among the events [first, first + count)."""
        return _in_pieces(self._persons, PERSON_SCHEMA, first=first, count=count)

    def auctions(self, *, first: int, count: int) -> Any:
        """Return the auctions among the events [first, first + count)."""
        return _in_pieces(self._auctions, AUCTION_SCHEMA, first=first, count=count)

    def bids(self, *, first: int, count: int) -> Any:
        """Return the bids among the events [first, first + count)."""
        return _in_pieces(self._bids, BID_SCHEMA, first=first, count=count)

    def _persons(self, events: Integers) -> Any:
        numbers = events[events % GROUP < PERSONS_PER_GROUP]
        draw = Counters(self.seed, numbers)
        first_name = draw.choice("person.first_name", _FIRST_NAMES)
        name = pc.binary_join_element_wise(first_name, draw.choice("person.last_name", _LAST_NAMES), " ")
        email = pc.binary_join_element_wise(draw.text("person.mail", 7), draw.text("person.host", 5), "@")
        email = pc.binary_join_element_wise(email, "com", ".")
        card = pc.binary_join_element_wise(
            *[_digits(draw.below(f"person.card{part}", 10_000), width=4) for part in range(4)], " "
        )
        city = draw.choice("person.city", _CITIES)
        state = draw.choice("person.state", _STATES)
        size = 8 + 8 + _lengths(name, email, card, city, state)
        columns = [
            pa.array(FIRST_PERSON + _newest_person(numbers)),
            name,
            email,
            card,
            city,
            state,
            self._times(draw),
            _padding(draw, "person.extra", size, PERSON_BYTES),
        ]
        return pa.Table.from_arrays(columns, schema=PERSON_SCHEMA)

    def _auctions(self, events: Integers) -> Any:
        place = events % GROUP
        numbers = events[(place >= PERSONS_PER_GROUP) & (place < PERSONS_PER_GROUP + AUCTIONS_PER_GROUP)]
        draw = Counters(self.seed, numbers)
        item = draw.text("auction.item", 5 + draw.below("auction.item_length", 16))
        description = draw.text("auction.description", 50 + draw.below("auction.description_length", 51))
        initial = _prices(draw, "auction.initial")
        people = _newest_person(numbers)
        hot_seller = people // HOT_STRIDE * HOT_STRIDE
        seller = np.where(
            draw.one_in("auction.cold", HOT_SELLER_RATIO), _active_person(draw, "auction.seller"), hot_seller
        )
        time = self._times(draw)
        in_flight_us = AUCTIONS_IN_FLIGHT * GROUP * 1_000_000 // (AUCTIONS_PER_GROUP * self.events_per_second)
        length_us = 1000 + draw.below("auction.length", max(2 * in_flight_us, 1))
        size = 8 * 7 + _lengths(item, description)
        columns = [
            pa.array(FIRST_AUCTION + _newest_auction(numbers)),
            item,
            description,
            pa.array(initial),
            pa.array(initial + _prices(draw, "auction.reserve")),
            time,
            pa.array(time.cast(pa.int64()).to_numpy() + length_us).cast(_TIME),
            pa.array(FIRST_PERSON + seller),
            pa.array(FIRST_CATEGORY + draw.below("auction.category", CATEGORIES)),
            _padding(draw, "auction.extra", size, AUCTION_BYTES),
        ]
        return pa.Table.from_arrays(columns, schema=AUCTION_SCHEMA)

    def _bids(self, events: Integers) -> Any:
        numbers = events[events % GROUP >= PERSONS_PER_GROUP + AUCTIONS_PER_GROUP]
        draw = Counters(self.seed, numbers)
        auctions = _newest_auction(numbers)
        oldest = np.maximum(auctions - AUCTIONS_IN_FLIGHT, 0)
        auction = np.where(
            draw.one_in("bid.cold_auction", HOT_AUCTION_RATIO),
            oldest + draw.below("bid.auction", auctions - oldest + 1),
            auctions // HOT_STRIDE * HOT_STRIDE,
        )
        people = _newest_person(numbers)
        # One past the hot seller, as published; it may not exist yet.
        hot_bidder = np.minimum(people // HOT_STRIDE * HOT_STRIDE + 1, people)
        bidder = np.where(
            draw.one_in("bid.cold_bidder", HOT_BIDDER_RATIO), _active_person(draw, "bid.bidder"), hot_bidder
        )
        channel, url = _channel_and_url(draw)
        # As published: the average includes the four numbers and the padding, but not channel and url.
        size = np.full(len(numbers), 8 * 4)
        columns = [
            pa.array(FIRST_AUCTION + auction),
            pa.array(FIRST_PERSON + bidder),
            pa.array(_prices(draw, "bid.price")),
            channel,
            url,
            self._times(draw),
            _padding(draw, "bid.extra", size, BID_BYTES),
        ]
        return pa.Table.from_arrays(columns, schema=BID_SCHEMA)

    def _times(self, draw: Counters) -> Any:
        times = self.first_time_us + draw.numbers * 1_000_000 // self.events_per_second
        if self.out_of_order_us:
            times = times - draw.below("time", self.out_of_order_us + 1)
        return pa.array(times).cast(_TIME)


def _in_pieces(make: Callable[[Integers], Any], schema: Any, *, first: int, count: int) -> Any:
    if first < 0 or count < 0:
        raise InputError(f"`first` and `count` must be at least 0, got {first} and {count}", fix="pass 0 or more")
    edges = range(first, first + count, _PIECE)
    pieces = [make(np.arange(edge, min(edge + _PIECE, first + count), dtype=np.int64)) for edge in edges]
    return pa.concat_tables(pieces) if pieces else schema.empty_table()


def _newest_person(numbers: Integers) -> Integers:
    """Return the number of the newest person at the time of each event; the first event is a person."""
    return numbers // GROUP


def _newest_auction(numbers: Integers) -> Integers:
    """Return the number of the newest auction at the time of each auction or bid."""
    place = np.clip(numbers % GROUP - PERSONS_PER_GROUP, 0, AUCTIONS_PER_GROUP - 1)
    return numbers // GROUP * AUCTIONS_PER_GROUP + place


def _active_person(draw: Counters, column: str) -> Integers:
    people = _newest_person(draw.numbers) + 1
    active = np.minimum(people, ACTIVE_PEOPLE)
    return people - active + draw.below(column, active)


@functools.cache
def _price_table() -> Integers:
    # 100 * 10^x for x from 0 to 6 in steps of 0.01. Decimal, because pow() may differ in the last bit between machines.
    return np.array([int(100 * Decimal(10) ** (Decimal(step) / 100)) for step in range(602)], dtype=np.int64)


def _prices(draw: Counters, column: str) -> Integers:
    """Draw log-uniform prices from 1 to 1,000,000, in cents."""
    position = draw.below(column, 600 << 16)
    step, share = position >> 16, position & 0xFFFF
    table = _price_table()
    prices: Integers = table[step] + ((table[step + 1] - table[step]) * share >> 16)
    return prices


def _channel_and_url(draw: Counters) -> tuple[Any, Any]:
    """Draw channel and URL: one bid in two comes through a hot channel with one page, the others through 10,000
    channels.
    """
    cold = pa.array(draw.one_in("bid.cold_channel", HOT_CHANNEL_RATIO))
    hot_channel = draw.below("bid.hot_channel", len(_HOT_CHANNELS))
    number = pa.array(draw.below("bid.channel", CHANNELS)).cast(pa.string())
    pages = [_page(Counters(draw.seed, np.arange(len(_HOT_CHANNELS))), "hot"), _page(draw, "bid")]
    channel = pc.if_else(
        cold,
        pc.binary_join_element_wise("channel", number, "-"),
        pa.array(_HOT_CHANNELS).take(pa.array(hot_channel)),
    )
    url = pc.if_else(
        cold,
        pc.binary_join_element_wise(pages[1], number, "&channel_id="),
        pages[0].take(pa.array(hot_channel)),
    )
    return channel, url


def _page(draw: Counters, column: str) -> Any:
    parts = [draw.text(f"{column}.page{part}", 5) for part in range(3)]
    return pc.binary_join_element_wise("https://www.nexmark.com", *parts, "item.htm?query=1", "/")


def _digits(values: Integers, *, width: int) -> Any:
    return pc.utf8_lpad(pa.array(values).cast(pa.string()), width=width, padding="0")


def _lengths(*columns: Any) -> Integers:
    total: Integers = sum(
        pc.binary_length(column).to_numpy(zero_copy_only=False).astype(np.int64) for column in columns
    )
    return total


def _padding(draw: Counters, column: str, size: Integers, average: int) -> Any:
    """Draw text that pads a row of `size` bytes to the average, give or take a fifth of the padding."""
    missing = np.maximum(average - size, 0)
    delta = missing // 5
    return draw.text(column, missing - delta + draw.below(f"{column}_length", 2 * delta + 1))
