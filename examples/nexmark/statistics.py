"""Queries whose results stand until they change: statistics (q15, q16, q17), the last bids (q18), the best (q19)."""

from typing import Any

from examples.nexmark.sources import Sources
from statebed.aggregates import functions as f
from statebed.flow import Stream

Aggregates = dict[str, Any]
"""Aggregates by the name of their column. Typed Any, because a type checker takes the names for those of other
arguments.
"""

DAY = "date_format(date_time, 'yyyy-MM-dd') as day"
LEVELS = {
    "total": None,
    "rank1": "price < 10000",
    "rank2": "price >= 10000 and price < 1000000",
    "rank3": "price >= 1000000",
}
"""Conditions on the price, by the name that begins the columns for them."""


def q15(sources: Sources) -> Stream:
    """Bidding statistics of each day: bids, bidders and auctions, by level of price."""
    return sources.bid.key_by(DAY, name="per_day").agg(**_bids(), **_distinct("bidder"), **_distinct("auction"))


def q16(sources: Sources) -> Stream:
    """The same for each channel and day, with the latest minute."""
    return sources.bid.key_by("channel", DAY, name="per_channel").agg(
        minute=f.max("date_format(date_time, 'HH:mm')"), **_bids(), **_distinct("bidder"), **_distinct("auction")
    )


def q17(sources: Sources) -> Stream:
    """Statistics of the prices of each auction and day."""
    return sources.bid.key_by("auction", DAY, name="per_auction").agg(
        **_bids(),
        min_price=f.min("price"),
        max_price=f.max("price"),
        avg_price=f.mean("price"),
        sum_price=f.sum("price"),
    )


def q18(sources: Sources) -> Stream:
    """The last bid of each bidder for each auction."""
    return sources.bid.deduplicate("bidder", "auction", keep="last", name="last_bid")


def q19(sources: Sources) -> Stream:
    """The ten highest bids of each auction, with their places."""
    return sources.bid.key_by("auction", name="highest").top(10, ["price desc", "date_time", "bidder"], number="place")


def _bids() -> Aggregates:
    return {f"{level}_bids": f.count(where=condition) for level, condition in LEVELS.items()}


def _distinct(column: str) -> Aggregates:
    return {f"{level}_{column}s": f.count_distinct(column, where=condition) for level, condition in LEVELS.items()}
