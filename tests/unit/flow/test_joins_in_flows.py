"""Joins, deduplication, top-n and functions over windows in a flow."""

import datetime as dt
from typing import Any

import pytest

from statebed import testing
from statebed.aggregates import functions as f
from statebed.errors import InputError
from statebed.flow import Flow, Stream, as_of, between, eq
from statebed.flow.window_calls import lag, row_number
from statebed.operators.window_definition import session, tumbling

BIDS = "auction bigint, price bigint, ts timestamp"
AUCTIONS = "id bigint, seller string, reserve bigint, opened timestamp"


def streams() -> tuple[Flow, Stream, Stream]:
    flow = Flow("auctions")
    bids = flow.source("bids", BIDS, watermark=("ts", "0s"))
    auctions = flow.source("auctions", AUCTIONS, watermark=("opened", "0s"))
    return flow, bids, auctions


def bid(auction: int | None, price: int, time: int) -> dict[str, Any]:
    return {"auction": auction, "price": price, "ts": time}


def auction(number: int, seller: str, reserve: int, time: int) -> dict[str, Any]:
    return {"id": number, "seller": seller, "reserve": reserve, "opened": time}


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("inner", {(1, 30, "ann")}),
        ("left", {(1, 30, "ann"), (1, 5, None), (2, 99, None), (None, 9, None)}),
        ("full", {(1, 30, "ann"), (1, 5, None), (2, 99, None), (None, 9, None), (3, None, "cid")}),
        ("semi", {(1, 30)}),
        ("anti", {(1, 5), (2, 99), (None, 9)}),
    ],
)
def test_a_bid_within_ten_of_its_auction_and_above_its_reserve(how: str, expected: set[Any]) -> None:
    flow, bids, auctions = streams()
    bids.join(
        auctions,
        eq("auction", "id"),
        within=between("-10 us", "0 us"),
        how=how,
        condition="price > reserve",
        name="won",
    )
    with testing.run(flow, parallelism=2) as t:
        t.watermark(0)
        t.feed_all({"bids": [bid(1, 30, 12), bid(2, 99, 5), bid(None, 9, 5)], "auctions": [auction(3, "cid", 1, 50)]})
        t.crash()
        t.feed_all({"auctions": [auction(1, "ann", 10, 8)], "bids": [bid(1, 5, 13)]})
        t.rescale(3)
        t.watermark(1000)
        shown = ["auction", "price", *(["seller"] if how in {"inner", "left", "full"} else [])]
        assert {tuple(row[name] for name in shown) for row in t.output("won")} == expected
        assert len(t.output("won")) == len(expected)
        assert t.state_rows("won") == 0


def test_a_join_in_a_window_gives_its_results_at_close() -> None:
    flow, bids, auctions = streams()
    bids.join(auctions, eq("auction", "id"), window=tumbling("10 us"), how="left", name="same")
    with testing.run(flow) as t:
        t.watermark(0)
        t.feed_all({"bids": [bid(1, 3, 5), bid(1, 4, 15)], "auctions": [auction(1, "ann", 0, 9)]})
        assert t.output("same") == []
        t.watermark(20)
        found = {(row["price"], row["seller"], row["window_start"].microsecond) for row in t.output("same")}
        assert found == {(3, "ann", 0), (4, None, 10)}


def test_a_join_without_a_time_follows_changes_of_both_sides() -> None:
    flow, bids, auctions = streams()
    best = bids.key_by("auction", name="best").agg(price=f.max("price"))
    auctions.join(best, eq("id", "auction"), how="left", name="standing")
    with testing.run(flow, parallelism=2) as t:
        t.feed("auctions", [auction(1, "ann", 0, 1), auction(2, "bob", 0, 1)])
        t.feed("bids", [bid(1, 10, 2)])
        t.feed("bids", [bid(1, 25, 3), bid(1, 7, 4)])
        t.crash()
        assert {(row["id"], row["seller"], row["price"]) for row in t.output("standing")} == {
            (1, "ann", 25),
            (2, "bob", None),
        }


def test_a_row_gets_the_version_of_its_time() -> None:
    flow, bids, auctions = streams()
    bids.join(auctions, eq("auction", "id"), as_of=as_of(), how="left", name="then")
    with testing.run(flow) as t:
        t.watermark(0)
        t.feed("bids", [bid(1, 1, 5), bid(1, 2, 15), bid(1, 3, 25)])
        t.feed("auctions", [auction(1, "old", 0, 10), auction(1, "new", 0, 20)])
        t.watermark(100)
        assert {(row["price"], row["seller"]) for row in t.output("then")} == {(1, None), (2, "old"), (3, "new")}


def test_the_first_and_the_last_row_of_a_key_and_the_highest() -> None:
    flow, bids, _ = streams()
    bids.deduplicate("auction", name="first")
    bids.deduplicate("auction", keep="last", name="last")
    bids.key_by("auction % 2 as parity", name="highest").top(1, "price desc", number="place")
    with testing.run(flow) as t:
        t.feed("bids", [bid(1, 5, 2), bid(1, 9, 1), bid(2, 4, 1)])
        t.feed("bids", [bid(1, 7, 3), bid(3, 8, 3)])
        assert {(row["auction"], row["price"]) for row in t.output("first")} == {(1, 9), (2, 4), (3, 8)}
        assert {(row["auction"], row["price"]) for row in t.output("last")} == {(1, 7), (2, 4), (3, 8)}
        assert {(row["parity"], row["auction"], row["price"], row["place"]) for row in t.output("highest")} == {
            (1, 1, 9, 1),
            (0, 2, 4, 1),
        }


def test_rows_of_a_window_are_numbered_and_the_first_are_taken_when_it_closes() -> None:
    flow, bids, _ = streams()
    bids.group_by("auction", tumbling("10 us"), name="numbered").over(
        "price desc", place=row_number(), before=lag("price")
    )
    bids.group_by(tumbling("10 us"), name="top").top(2, "price desc", numbering="rank", number="place")
    with testing.run(flow, parallelism=2) as t:
        t.watermark(0)
        t.feed("bids", [bid(1, 5, 2), bid(1, 9, 1), bid(2, 9, 1), bid(2, 1, 12)])
        t.watermark(10)
        assert {(row["auction"], row["price"], row["place"], row["before"]) for row in t.output("numbered")} == {
            (1, 9, 1, None),
            (1, 5, 2, 9),
            (2, 9, 1, None),
        }
        assert {(row["auction"], row["price"], row["place"]) for row in t.output("top")} == {(1, 9, 1), (2, 9, 1)}


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"on": "auction"}, r"columns to join on \['auction'\] do not exist"),
        ({"on": eq("auction", "id"), "how": "outer"}, "got 'outer'"),
        ({"on": eq("auction", "id"), "window": tumbling("1 s"), "as_of": as_of()}, "one of within"),
        ({"on": eq("auction", "id"), "as_of": as_of(), "condition": "price > 1"}, "no condition"),
        ({"on": eq("auction", "id"), "window": tumbling("1 s"), "ttl": "1 day"}, "only for a join without"),
        ({"on": eq("auction", "id"), "condition": "price > top"}, "top"),
        ({"on": eq("auction", "seller")}, "do not match"),
    ],
)
def test_joins_that_make_no_sense_are_refused_when_they_are_written(terms: dict[str, Any], message: str) -> None:
    _, bids, auctions = streams()
    with pytest.raises(InputError, match=message):
        bids.join(auctions, **terms)


@pytest.mark.parametrize(
    ("terms", "named"),
    [
        ({"within": ("0s", "1 minute")}, "within"),
        ({"within": dt.timedelta(minutes=1)}, "within"),
        ({"within": 60}, "within"),
        ({"within": ""}, "within"),
        ({"within": as_of()}, "within"),
        ({"window": session("1 minute")}, "window"),
        ({"window": "1 minute"}, "window"),
        ({"window": between("0s", "1 minute")}, "window"),
        ({"as_of": True}, "as_of"),
        ({"as_of": "1 minute"}, "as_of"),
        ({"on": 7}, "on"),
        ({"on": tumbling("1 minute")}, "on"),
    ],
)
def test_a_condition_of_a_wrong_type_never_makes_a_join_without_a_time(terms: dict[str, Any], named: str) -> None:
    _, bids, auctions = streams()
    with pytest.raises(InputError, match=f"`{named}` must be"):
        bids.join(auctions, **{"on": eq("auction", "id"), **terms})
