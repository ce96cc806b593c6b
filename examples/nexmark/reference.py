"""Meaning of each query over all rows at once, as SQL that DuckDB runs; times are without a zone, in UTC."""

# ruff: noqa: S608 - no part of these texts comes from outside

_LEVELS = {
    "total": "true",
    "rank1": "price < 10000",
    "rank2": "price >= 10000 and price < 1000000",
    "rank3": "price >= 1000000",
}
_BIDS = ", ".join(f"count(*) filter (where {test}) as {level}_bids" for level, test in _LEVELS.items())
_DISTINCT = ", ".join(
    f"count(distinct {column}) filter (where {test}) as {level}_{column}s"
    for column in ("bidder", "auction")
    for level, test in _LEVELS.items()
)
_DAY = "strftime(date_time, '%Y-%m-%d')"
_OF_AUCTION = """a.item_name, a.description, a.initial_bid, a.reserve, a.date_time as date_time_of_auction, a.expires,
    a.seller, a.category, a.extra as extra_of_auction"""
_OF_PERSON = """p.name, p.email_address, p.credit_card, p.city, p.state, p.date_time as date_time_of_person,
    p.extra as extra_of_person"""
_IN_TIME = "auction a join bid b on a.id = b.auction and b.date_time between a.date_time and a.expires"
_WINNING = f"""(select b.*, {_OF_AUCTION} from {_IN_TIME} qualify
    row_number() over (partition by a.id order by b.price desc, b.date_time, b.bidder) = 1)"""
_CHANNEL_ID = "regexp_extract(url, '(&|^)channel_id=([^&]*)', 2)"


def _start(time: str, seconds: int) -> str:
    """The start of the tumbling window that holds a time."""
    return f"time_bucket(interval {seconds} seconds, {time}, timestamp '1970-01-01')"


REFERENCE = {
    "q0": "select auction, bidder, price, date_time, extra from bid",
    "q1": "select auction, bidder, 0.908 * price as price, date_time, extra from bid",
    "q2": "select auction, price from bid where auction % 123 = 0",
    "q3": """select p.name, p.city, p.state, a.id from auction a join person p on a.seller = p.id
        where a.category = 10 and p.state in ('OR', 'ID', 'CA')""",
    "q4": f"""select category, avg(final) as average
        from (select a.id, a.category, max(b.price) as final from {_IN_TIME} group by all) group by category""",
    "q5": f"""select auction, count(*) as bids, starts + interval 10 seconds as until
        from (select auction, unnest([{_start("date_time", 2)} - k * interval 2 seconds for k in range(5)]) as starts
              from bid)
        group by auction, starts qualify rank() over (partition by starts order by bids desc) = 1""",
    "q6": f"""select seller, avg(price) as average from (select * from {_WINNING} qualify
            row_number() over (partition by seller order by expires desc, auction desc) <= 10)
        group by seller""",
    "q7": f"""select auction, price, bidder, date_time, extra from bid
        qualify price = max(price) over (partition by {_start("date_time", 10)})""",
    "q8": f"""select distinct p.id, p.name, {_start("p.date_time", 10)} as window_start
        from person p join auction a
        on p.id = a.seller and {_start("p.date_time", 10)} = {_start("a.date_time", 10)}""",
    "q9": f"select * from {_WINNING}",
    "q10": f"""select auction, bidder, price, date_time, extra, {_DAY} as dt, strftime(date_time, '%H:%M') as hm
        from bid""",
    "q11": """with marked as (
            select bidder, date_time,
                coalesce(date_time - lag(date_time) over one > interval 10 seconds, true) as fresh
            from bid window one as (partition by bidder order by date_time)),
        numbered as (
            select bidder, date_time, sum(fresh::int) over (partition by bidder order by date_time) as number
            from marked)
        select bidder, min(date_time) as window_start, max(date_time) + interval 10 seconds as window_end,
            count(*) as bids
        from numbered group by bidder, number""",
    "q12": f"""select bidder, {_start("arrived", 10)} as window_start,
            {_start("arrived", 10)} + interval 10 seconds as window_end, count(*) as bids
        from bid_on_arrival group by all""",
    "q13": """select b.auction, b.bidder, b.price, b.date_time, s.value
        from bid b join side_input s on b.auction % 10000 = s.key""",
    "q14": """select auction, bidder, 0.908 * price as price,
            case when hour(date_time) between 8 and 18 then 'dayTime'
                 when hour(date_time) <= 6 or hour(date_time) >= 20 then 'nightTime'
                 else 'otherTime' end as bid_time_type,
            date_time, extra, length(regexp_replace(extra, '[^c]', '', 'g')) as c_counts
        from bid where 0.908 * price > 1000000 and 0.908 * price < 50000000""",
    "q15": f"select {_DAY} as day, {_BIDS}, {_DISTINCT} from bid group by all",
    "q16": f"""select channel, {_DAY} as day, max(strftime(date_time, '%H:%M')) as minute, {_BIDS}, {_DISTINCT}
        from bid group by all""",
    "q17": f"""select auction, {_DAY} as day, {_BIDS}, min(price) as min_price, max(price) as max_price,
            avg(price) as avg_price, sum(price)::bigint as sum_price
        from bid group by all""",
    "q18": """select * from bid
        qualify row_number() over (partition by bidder, auction order by date_time desc, price desc) = 1""",
    "q19": """select *, row_number() over (partition by auction order by price desc, date_time, bidder) as place
        from bid qualify place <= 10""",
    "q20": f"select b.*, {_OF_AUCTION} from bid b join auction a on b.auction = a.id where a.category = 10",
    "q21": f"""select auction, bidder, price, channel,
            case lower(channel) when 'apple' then '0' when 'google' then '1' when 'facebook' then '2'
                 when 'baidu' then '3' else {_CHANNEL_ID} end as channel_id
        from bid where {_CHANNEL_ID} <> '' or lower(channel) in ('apple', 'google', 'facebook', 'baidu')""",
    "q22": """select auction, bidder, price, channel, split_part(url, '/', 4) as dir1, split_part(url, '/', 5) as dir2,
            split_part(url, '/', 6) as dir3
        from bid""",
    "q23": f"""select b.*, {_OF_PERSON}, a.id, {_OF_AUCTION.replace("a.seller, ", "")}
        from bid b join person p on p.id = b.bidder join auction a on a.seller = b.bidder""",
}
"""SQL by the query's name."""
