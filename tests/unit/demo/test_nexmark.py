"""The generator: published proportions and hot keys, references that make sense, ranges that compose."""

import hashlib
import os
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from statebed.demo.nexmark import Nexmark
from statebed.errors import InputError

EVENTS = 100_000
TABLES = ["persons", "auctions", "bids"]


def table(generator: Nexmark, name: str, *, first: int, count: int) -> pa.Table:
    return getattr(generator, name)(first=first, count=count).combine_chunks()


@pytest.fixture(scope="module")
def events() -> dict[str, pa.Table]:
    return {name: table(Nexmark(seed=3), name, first=0, count=EVENTS) for name in TABLES}


def column(events: dict[str, pa.Table], name: str, field: str) -> np.ndarray:
    values: np.ndarray = events[name][field].to_numpy()
    return values


def test_of_every_50_events_1_is_a_person_3_are_auctions_and_46_are_bids(events: dict[str, pa.Table]) -> None:
    assert [events[name].num_rows for name in TABLES] == [EVENTS // 50, EVENTS // 50 * 3, EVENTS // 50 * 46]


def test_the_fields_are_the_published_ones(events: dict[str, pa.Table]) -> None:
    assert events["persons"].schema.names == (
        ["id", "name", "emailAddress", "creditCard", "city", "state", "dateTime", "extra"]
    )
    assert events["auctions"].schema.names == (
        [
            "id",
            "itemName",
            "description",
            "initialBid",
            "reserve",
            "dateTime",
            "expires",
            "seller",
            "category",
            "extra",
        ]
    )
    assert events["bids"].schema.names == [
        "auction",
        "bidder",
        "price",
        "channel",
        "url",
        "dateTime",
        "extra",
    ]


def test_ids_of_persons_and_auctions_are_consecutive(events: dict[str, pa.Table]) -> None:
    for name in ("persons", "auctions"):
        ids = column(events, name, "id")
        assert ids.tolist() == list(range(1000, 1000 + len(ids)))


def test_half_of_the_bids_go_to_the_hot_auction(events: dict[str, pa.Table]) -> None:
    auctions = column(events, "bids", "auction")
    # One in 101 of the other half hits the hot auction as well.
    assert 0.49 < np.mean((auctions - 1000) % 100 == 0) < 0.52


def test_three_quarters_of_auctions_and_bids_are_of_hot_people(events: dict[str, pa.Table]) -> None:
    sellers = column(events, "auctions", "seller") - 1000
    bidders = column(events, "bids", "bidder") - 1000
    assert 0.73 < np.mean(sellers % 100 == 0) < 0.78
    assert 0.72 < np.mean(bidders % 100 == 1) < 0.78


def test_bids_refer_to_auctions_and_people_that_exist_and_are_recent(events: dict[str, pa.Table]) -> None:
    number = np.arange(EVENTS)[np.arange(EVENTS) % 50 >= 4]
    newest_auction = 1000 + number // 50 * 3 + 2
    newest_person = 1000 + number // 50
    auctions = column(events, "bids", "auction")
    bidders = column(events, "bids", "bidder")
    assert np.all(auctions <= newest_auction)
    assert np.all(auctions >= np.maximum(newest_auction - 100, 1000))
    assert np.all(bidders <= newest_person)
    assert np.all(bidders >= np.maximum(newest_person - 999, 1000))
    cold = np.unique(auctions[-46_000:])
    assert len(cold) > 1000, "the bids that are not hot spread over all auctions in flight"


def test_auctions_refer_to_people_that_exist(events: dict[str, pa.Table]) -> None:
    newest_person = 1000 + np.arange(EVENTS // 50 * 3) // 3
    assert np.all(column(events, "auctions", "seller") <= newest_person)
    assert np.all(column(events, "auctions", "seller") >= 1000)


def test_an_auction_expires_after_it_opens_and_its_reserve_is_above_its_first_price(
    events: dict[str, pa.Table],
) -> None:
    auctions = events["auctions"]
    assert pc.all(pc.greater(auctions["expires"], auctions["dateTime"])).as_py()
    assert pc.all(pc.greater(auctions["reserve"], auctions["initialBid"])).as_py()
    assert set(auctions["category"].to_pylist()) == {10, 11, 12, 13, 14}


def test_prices_are_spread_evenly_over_six_decades(events: dict[str, pa.Table]) -> None:
    prices = column(events, "bids", "price")
    assert prices.min() >= 100
    assert prices.max() <= 100_000_000
    shares = np.histogram(np.log10(prices), bins=6, range=(2, 8))[0] / len(prices)
    assert np.all(np.abs(shares - 1 / 6) < 0.01)


def test_average_sizes_are_the_published_ones(events: dict[str, pa.Table]) -> None:
    def average(name: str, numbers: int, fields: str) -> float:
        texts = sum(pc.sum(pc.binary_length(events[name][field])).as_py() for field in fields.split())
        return float(8 * numbers + texts / events[name].num_rows)

    assert abs(average("persons", 2, "name emailAddress creditCard city state extra") - 200) < 2
    assert abs(average("auctions", 7, "itemName description extra") - 500) < 2
    assert abs(average("bids", 4, "extra") - 100) < 1


def test_event_time_advances_with_the_event_number(events: dict[str, pa.Table]) -> None:
    times = events["bids"]["dateTime"].cast(pa.int64()).to_numpy()
    assert np.all(np.diff(times) >= 0)
    assert times[-1] - times[0] == (EVENTS - 1 - 4) * 1_000_000 // 10_000


def test_out_of_order_events_move_back_by_no_more_than_asked(events: dict[str, pa.Table]) -> None:
    shuffled = table(Nexmark(seed=3, out_of_order_us=50_000), "bids", first=0, count=EVENTS)
    back = pc.subtract(events["bids"]["dateTime"].cast(pa.int64()), shuffled["dateTime"].cast(pa.int64())).to_numpy()
    assert back.min() >= 0
    assert 49_000 < back.max() <= 50_000
    assert np.any(np.diff(shuffled["dateTime"].cast(pa.int64()).to_numpy()) < 0)
    assert shuffled.drop_columns("dateTime").equals(events["bids"].drop_columns("dateTime"))


def test_another_seed_gives_other_events(events: dict[str, pa.Table]) -> None:
    other = column({"bids": table(Nexmark(seed=4), "bids", first=0, count=EVENTS)}, "bids", "price")
    assert np.mean(other == column(events, "bids", "price")) < 0.01


@settings(max_examples=examples(30), deadline=None)
@given(
    name=st.sampled_from(TABLES),
    seed=st.integers(0, 2**64 - 1),
    first=st.integers(0, 10**12),
    lengths=st.lists(st.integers(0, 300), min_size=1, max_size=4),
)
def test_ranges_compose(name: str, seed: int, first: int, lengths: list[int]) -> None:
    generator = Nexmark(seed=seed, out_of_order_us=2_000_000)
    edges = np.cumsum([first, *lengths]).tolist()
    parts = [getattr(generator, name)(first=start, count=length) for start, length in zip(edges, lengths, strict=False)]
    whole = table(generator, name, first=first, count=sum(lengths))
    assert pa.concat_tables(parts).combine_chunks().equals(whole)


def test_a_range_larger_than_one_piece_equals_its_parts() -> None:
    generator = Nexmark()
    whole = table(generator, "auctions", first=0, count=450_000)
    parts = [generator.auctions(first=start, count=90_000) for start in range(0, 450_000, 90_000)]
    assert pa.concat_tables(parts).combine_chunks().equals(whole)


DIGEST = """
import hashlib, pyarrow as pa
from statebed.demo.nexmark import Nexmark
digest = hashlib.sha256()
for name in ("persons", "auctions", "bids"):
    rows = getattr(Nexmark(seed=11, out_of_order_us=1000), name)(first=123_456, count=5000).to_pylist()
    digest.update(repr([[str(value) for value in row.values()] for row in rows]).encode())
print(digest.hexdigest())
"""


def test_another_process_makes_the_same_bytes() -> None:
    def digest(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", DIGEST],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            env=environment,
        )
        return done.stdout.strip()

    first = digest("1")
    assert first == digest("2")
    assert len(first) == len(hashlib.sha256().hexdigest())


def test_the_values_are_pinned_so_that_a_change_of_the_generator_is_noticed() -> None:
    bid = Nexmark(seed=1).bids(first=1_000_004, count=1).to_pylist()[0]
    assert [bid["auction"], bid["bidder"], bid["channel"], bid["price"]] == [
        61001,
        21000,
        "channel-3782",
        134919,
    ]


def test_it_makes_more_than_fifty_thousand_bids_a_second(capsys: pytest.CaptureFixture[str]) -> None:
    start = time.perf_counter()
    rows = Nexmark().bids(first=0, count=200_000).num_rows
    rate = rows / (time.perf_counter() - start)
    with capsys.disabled():
        print(f"\n  nexmark: {rate / 1e3:.0f} thousand bids a second")  # noqa: T201 - the figure is the point
    assert rate > 50_000


@pytest.mark.parametrize("bad", [{"events_per_second": 0}, {"out_of_order_us": -1}, {"out_of_order_us": 2**32}])
def test_a_stream_that_cannot_be_is_refused(bad: dict[str, int]) -> None:
    with pytest.raises(InputError):
        Nexmark(**bad)


def test_a_negative_range_is_refused() -> None:
    with pytest.raises(InputError, match="-5"):
        Nexmark().bids(first=-5, count=10)
    assert Nexmark().bids(first=5, count=0).num_rows == 0
