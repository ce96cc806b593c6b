"""Queries that look at one row at a time and keep no state: q0, q1, q2, q10, q14, q21, q22."""

from examples.nexmark.sources import Sources
from statebed.flow import Stream

CHANNEL_ID = r"regexp_extract(url, '(&|^)channel_id=([^&]*)', 2)"


def q0(sources: Sources) -> Stream:
    """Pass through: every bid as it is."""
    return sources.bid.select("auction", "bidder", "price", "date_time", "extra")


def q1(sources: Sources) -> Stream:
    """Currency conversion: prices in euros."""
    return sources.bid.select("auction", "bidder", "0.908 * price as price", "date_time", "extra")


def q2(sources: Sources) -> Stream:
    """Selection: bids for some auctions."""
    return sources.bid.where("auction % 123 = 0").select("auction", "price")


def q10(sources: Sources) -> Stream:
    """Log to a file system: every bid, with the columns that its file is chosen by."""
    return sources.bid.select(
        "auction",
        "bidder",
        "price",
        "date_time",
        "extra",
        "date_format(date_time, 'yyyy-MM-dd') as dt",
        "date_format(date_time, 'HH:mm') as hm",
    )


def q14(sources: Sources) -> Stream:
    """Calculation: bids of some prices in euros, with the time of day and a count of characters."""
    return (
        sources.bid.with_columns(price="0.908 * price")
        .where("price > 1000000 and price < 50000000")
        .select(
            "auction",
            "bidder",
            "price",
            """case when hour(date_time) >= 8 and hour(date_time) <= 18 then 'dayTime'
                    when hour(date_time) <= 6 or hour(date_time) >= 20 then 'nightTime'
                    else 'otherTime' end as bid_time_type""",
            "date_time",
            "extra",
            "length(extra) - length(replace(extra, 'c', '')) as c_counts",
        )
    )


def q21(sources: Sources) -> Stream:
    """Channel ids: known channels have one, of others it is in the url."""
    return (
        sources.bid.with_columns(
            channel_id=f"""case lower(channel) when 'apple' then '0' when 'google' then '1'
                           when 'facebook' then '2' when 'baidu' then '3' else {CHANNEL_ID} end"""
        )
        .where("channel_id <> ''")
        .select("auction", "bidder", "price", "channel", "channel_id")
    )


def q22(sources: Sources) -> Stream:
    """Directories of the url."""
    return sources.bid.select(
        "auction",
        "bidder",
        "price",
        "channel",
        "split(url, '/')[3] as dir1",
        "split(url, '/')[4] as dir2",
        "split(url, '/')[5] as dir3",
    )
