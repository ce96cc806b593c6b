"""Queries with windows, whose results are final when the window closes: q5, q7, q8, q11, q12."""

from examples.nexmark.sources import Sources
from statebed.aggregates import functions as f
from statebed.flow import Stream, eq
from statebed.operators.window_definition import session, sliding, tumbling


def q5(sources: Sources) -> Stream:
    """Hot items: the auctions with the most bids in the last ten seconds, every two seconds."""
    counts = sources.bid.group_by("auction", sliding("10 seconds", "2 seconds"), name="bids_per_auction").agg(
        bids=f.count()
    )
    # A result's time is just before its window's end, so two seconds hold the results of one sliding window.
    return (
        counts.select("auction", "bids", "window_end as until")
        .group_by(tumbling("2 seconds"), name="hottest")
        .top(1, "bids desc", numbering="rank")
        .select("auction", "bids", "until")
    )


def q7(sources: Sources) -> Stream:
    """The highest bid of every ten seconds."""
    ten_seconds = tumbling("10 seconds")
    bids = sources.bid.select("auction", "price", "bidder", "date_time", "extra")
    highest = bids.group_by(ten_seconds, name="highest_price").agg(highest=f.max("price")).select("highest")
    return bids.join(highest, eq("price", "highest"), window=ten_seconds, name="highest_bid").select(*bids.columns)


def q8(sources: Sources) -> Stream:
    """New users: persons who sold something within the ten seconds in which they signed up."""
    persons, sellers = sources.person.select("id", "name"), sources.auction.select("seller")
    new_sellers = persons.join(
        sellers, eq("id", "seller"), window=tumbling("10 seconds"), how="semi", name="new_sellers"
    )
    return new_sellers.select("id", "name", "window_start")


def q11(sources: Sources) -> Stream:
    """User sessions: how many bids a person makes with breaks of ten seconds at most."""
    return sources.bid.group_by("bidder", session("10 seconds"), name="sessions").agg(bids=f.count())


def q12(sources: Sources) -> Stream:
    """Windows of processing time: how many bids of a person are processed in ten seconds."""
    return sources.bid_on_arrival.group_by("bidder", tumbling("10 seconds"), name="per_bidder").agg(bids=f.count())
