"""Queries that join streams: q3, q4, q6, q9, q13, q20, q23.

Those over winning bids need an auction for as long as it is open, so the join is bounded in time and its state, too.
The others join for good. What a query does not need is left out before the join, which would keep it.
"""

from examples.nexmark.sources import SIDE_INPUT_KEYS, Sources
from statebed.aggregates import functions as f
from statebed.flow import Stream, between, eq

LONGEST_AUCTION = "1 hour"
OF_AUCTION = ("", "_of_auction")
"""Columns that bids and auctions have are called so in pairs."""


def q3(sources: Sources) -> Stream:
    """Local items: who sells in one category in three states."""
    sellers = sources.person.where("state in ('OR', 'ID', 'CA')").select("id as seller", "name", "city", "state")
    items = sources.auction.where("category = 10").select("id", "seller")
    return items.join(sellers, "seller", name="local_items").select("name", "city", "state", "id")


def q4(sources: Sources) -> Stream:
    """The average of the final prices of a category's auctions."""
    bids = sources.bid.select("auction", "price", "date_time")
    in_time = _in_time(bids, sources.auction.select("id", "category", "expires"))
    finals = in_time.key_by("auction", "category", name="final_prices").agg(final=f.max("price"))
    return finals.key_by("category", name="category_average").agg(average=f.mean("final"))


def q6(sources: Sources) -> Stream:
    """The average final price of a seller's last ten auctions."""
    bids = sources.bid.select("auction", "bidder", "price", "date_time")
    winning = _winning(_in_time(bids, sources.auction.select("id", "seller", "expires")))
    last_ten = winning.key_by("seller", name="last_ten").top(10, ["expires desc", "auction desc"])
    return last_ten.key_by("seller", name="seller_average").agg(average=f.mean("price"))


def q9(sources: Sources) -> Stream:
    """The winning bid of each auction."""
    return _winning(_in_time(sources.bid, sources.auction))


def q13(sources: Sources) -> Stream:
    """Bids with a value of a table that does not change."""
    return (
        sources.bid.select("auction", "bidder", "price", "date_time", f"auction % {SIDE_INPUT_KEYS} as key")
        .join(sources.side_input, "key", name="with_side_input")
        .select("auction", "bidder", "price", "date_time", "value")
    )


def q20(sources: Sources) -> Stream:
    """Bids with their auctions, of one category."""
    return sources.bid.join(
        sources.auction.where("category = 10"), eq("auction", "id"), suffixes=OF_AUCTION, name="with_auction"
    )


def q23(sources: Sources) -> Stream:
    """Bids with who made them and what those sell themselves: a join of three streams."""
    with_person = sources.bid.join(sources.person, eq("bidder", "id"), suffixes=("", "_of_person"), name="with_person")
    return with_person.join(sources.auction, eq("bidder", "seller"), suffixes=OF_AUCTION, name="with_auction")


def _in_time(bids: Stream, auctions: Stream) -> Stream:
    """Bids with their auctions, made while those were open."""
    return bids.join(
        auctions,
        eq("auction", "id"),
        within=between(f"-{LONGEST_AUCTION}", "0s"),
        condition="date_time <= expires",
        suffixes=OF_AUCTION,
        name="bids_in_time",
    )


def _winning(bids: Stream) -> Stream:
    """Return the highest of these bids for each auction, or the first of equal ones."""
    return bids.key_by("auction", name="winning").top(1, ["price desc", "date_time", "bidder"])
