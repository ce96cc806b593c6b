"""Event times: which rows an interval pairs, which column a window takes, and which rows are late then."""

from typing import Any

import pytest

from statebed import testing
from statebed.aggregates import functions as f
from statebed.errors import InputError
from statebed.flow import Flow, Stream, as_of, between
from statebed.flow.event_time import Lags, event_time_columns, event_time_text, time_lags
from statebed.flow.steps import EXACT, Lag
from statebed.operators.window_definition import cumulative, session, sliding, tumbling
from statebed.quantities import duration_text, parse_duration

MINUTE = 60_000_000


def streams() -> tuple[Flow, Stream, Stream]:
    flow = Flow("shop")
    orders = flow.source("orders", "id bigint, ordered_at timestamp", watermark=("ordered_at", "0s"))
    shipments = flow.source("shipments", "id bigint, shipped_at timestamp", watermark=("shipped_at", "0s"))
    return flow, orders, shipments


def order(number: int, minute: float) -> dict[str, Any]:
    return {"id": number, "ordered_at": int(minute * MINUTE)}


def shipment(number: int, minute: float) -> dict[str, Any]:
    return {"id": number, "shipped_at": int(minute * MINUTE)}


def pairs_of(within: Any) -> set[tuple[int, int]]:
    """Return which shipments at minutes -10 to 10 are paired with an order at minute 100."""
    flow, orders, shipments = streams()
    orders.join(shipments, "id", within=within, name="pairs")
    with testing.run(flow) as t:
        t.feed_all(
            {"orders": [order(1, 100)], "shipments": [shipment(1, 100 + minute) for minute in (-10, -5, 0, 5, 10)]}
        )
        found = {int((row["shipped_at"] - row["ordered_at"]).total_seconds()) // 60 for row in t.output("pairs")}
    return {(100, 100 + minute) for minute in found}


def test_between_counts_right_minus_left_as_flink_and_sql_do() -> None:
    assert pairs_of(between("0s", "5 minutes")) == {(100, 100), (100, 105)}
    assert pairs_of(between("-10 minutes", "-5 minutes")) == {(100, 90), (100, 95)}


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("b.shipped_at BETWEEN a.ordered_at AND a.ordered_at + INTERVAL 5 MINUTES", {0, 5}),
        ("b.shipped_at between a.ordered_at - interval 10 minutes and a.ordered_at", {-10, -5, 0}),
        ("a.ordered_at BETWEEN b.shipped_at - INTERVAL '5' MINUTE AND b.shipped_at", {0, 5}),
        ("shipments.shipped_at BETWEEN orders.ordered_at AND orders.ordered_at + INTERVAL '5 minutes'", {0, 5}),
        ("right.shipped_at >= left.ordered_at AND right.shipped_at < left.ordered_at + INTERVAL 5 MINUTES", {0}),
        ("shipped_at > ordered_at and shipped_at - interval 10 minutes <= ordered_at", {5, 10}),
        ("ordered_at = shipped_at", {0}),
        ("SHIPPED_AT between ordered_at - interval 5 minutes and interval 5 minutes + ordered_at", {-5, 0, 5}),
    ],
)
def test_an_interval_may_be_sql_text(text: str, minutes: set[int]) -> None:
    expected = {(100, 100 + minute) for minute in minutes}
    assert pairs_of(text) == expected
    assert pairs_of(between(text)) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("b.shipped_at >= a.ordered_at", "one side only"),
        ("b.shipped_at > a.ordered_at and b.shipped_at < a.ordered_at", "is an empty interval"),
        ("b.id BETWEEN a.ordered_at AND a.ordered_at", "'b.id' is not the event time of the right stream"),
        ("c.shipped_at BETWEEN a.ordered_at AND a.ordered_at", "no stream 'c'"),
        ("x BETWEEN a.ordered_at AND a.ordered_at", "'x' is the event time of neither stream"),
        ("a.ordered_at BETWEEN a.ordered_at AND b.shipped_at", "same stream"),
        ("b.shipped_at BETWEEN a.ordered_at AND a.ordered_at + 5", "INTERVAL"),
        ("b.shipped_at = a.ordered_at or true", "does not compare"),
        ("b.shipped_at BETWEEN a.ordered_at", "and"),
    ],
)
def test_sql_text_that_is_no_interval_is_refused_at_the_line_of_the_join(text: str, words: str) -> None:
    _, orders, shipments = streams()
    with pytest.raises(InputError) as caught:
        orders.join(shipments, "id", within=text, name="pairs")
    assert words in str(caught.value)
    assert "operator 'pairs'" in str(caught.value)


def test_bounds_in_the_wrong_order_are_shown_in_the_right_one() -> None:
    with pytest.raises(InputError, match=r"between\('0s', '10 minutes'\)"):
        between("10 minutes", "0s")
    with pytest.raises(InputError, match="two durations, or one SQL text"):
        between(3)  # type: ignore[arg-type]


# ---- windows on a column -------------------------------------------------------------------------------------


def late_pairs() -> dict[str, list[dict[str, Any]]]:
    """Orders of minutes 0 to 4, each shipped three minutes later."""
    return {
        "orders": [order(minute, minute) for minute in range(5)],
        "shipments": [shipment(minute, minute + 3.5) for minute in range(5)],
    }


def counts(t: testing.TestRun, name: str) -> dict[int, int]:
    return {row["window_start"].minute: row["n"] for row in t.output(name)}


def test_a_window_behind_a_join_takes_the_column_that_it_names() -> None:
    flow, orders, shipments = streams()
    pairs = orders.join(shipments, "id", within=between("0s", "5 minutes"), name="pairs")
    pairs.group_by(tumbling("1 minute"), name="by_pair").agg(n=f.count())
    pairs.group_by(tumbling("1 minute", on="ordered_at"), name="by_order").agg(n=f.count())
    pairs.group_by(tumbling("1 minute", on="shipped_at"), name="by_shipment").agg(n=f.count())
    with testing.run(flow) as t:
        for minute in range(5):
            t.feed_all({"orders": [order(minute, minute)], "shipments": [shipment(minute, minute + 3.5)]})
        t.watermark(20 * MINUTE)
        assert counts(t, "by_order") == dict.fromkeys(range(5), 1)
        assert counts(t, "by_pair") == counts(t, "by_shipment") == dict.fromkeys(range(3, 8), 1)
        assert not any(t.counts[name, "rows_late"] for name in ("by_order", "by_pair", "by_shipment"))


def test_a_window_on_a_lagging_column_closes_by_the_watermark_minus_the_lag_of_the_join() -> None:
    flow, orders, shipments = streams()
    pairs = orders.join(shipments, "id", within=between("0s", "5 minutes"), name="pairs")
    pairs.group_by(tumbling("1 minute", on="ordered_at"), name="by_order").agg(n=f.count())
    with testing.run(flow) as t:
        t.feed_all({"orders": [order(1, 0)], "shipments": [shipment(1, 1)]})
        t.watermark(int(5.9 * MINUTE))
        assert t.output("by_order") == [], "a shipment at 5.95 may still belong to an order at 0.95"
        t.watermark(6 * MINUTE)
        assert counts(t, "by_order") == {0: 1}


def test_a_column_that_nothing_bounds_closes_by_the_watermark_and_rows_behind_it_are_late() -> None:
    flow = Flow("shop")
    rows = flow.source("rows", "id bigint, made timestamp, ts timestamp", watermark=("ts", "0s"))
    rows.group_by(tumbling("1 minute", on="made"), name="by_made").agg(n=f.count())
    with testing.run(flow) as t:
        t.feed("rows", [{"id": 1, "made": 0, "ts": 5 * MINUTE}, {"id": 2, "made": None, "ts": 5 * MINUTE}])
        t.watermark(5 * MINUTE)
        assert counts(t, "by_made") == {0: 1}
        t.feed("rows", [{"id": 3, "made": 1, "ts": 6 * MINUTE}])
        assert t.counts["by_made", "rows_late"] == 2, "one comes too late, one has no time"


@pytest.mark.parametrize(
    "window",
    [
        tumbling("2 minutes", on="ordered_at"),
        sliding("2 minutes", "1 minute", on="ordered_at"),
        cumulative("2 minutes", "1 minute", on="ordered_at"),
        session("30 seconds", on="ordered_at"),
    ],
    ids=lambda window: window.described(),
)
def test_every_kind_of_window_takes_a_column_and_survives_crashes_and_rescaling(window: Any) -> None:
    def results(flow: Flow, name: str, *rows: dict[str, list[dict[str, Any]]], disturbed: bool) -> set[Any]:
        with testing.run(flow, parallelism=2) as t:
            for some in rows:
                t.feed_all(some)
                if disturbed:
                    t.crash()
                    t.rescale(3)
            t.watermark(100 * MINUTE)
            assert t.counts[name, "rows_late"] == 0
            return {(row["window_start"], row["window_end"], row["n"]) for row in t.output(name)}

    flow, orders, shipments = streams()
    pairs = orders.join(shipments, "id", within=between("0s", "5 minutes"), name="pairs")
    pairs.group_by(window, name="windows").agg(n=f.count())
    plain, alone, _ = streams()
    event_time = type(window)(**{**window.__dict__, "on": None})
    alone.group_by(event_time, name="windows").agg(n=f.count())
    expected = results(plain, "windows", {"orders": late_pairs()["orders"]}, disturbed=False)
    epochs = [
        {name: [row] for name, row in zip(late_pairs(), both, strict=True)}
        for both in zip(*late_pairs().values(), strict=True)
    ]
    assert results(flow, "windows", *epochs, disturbed=True) == expected


def test_another_column_is_another_definition() -> None:
    def made(on: str | None) -> tuple[str, str]:
        flow, orders, shipments = streams()
        pairs = orders.join(shipments, "id", within=between("0s", "5 minutes"), name="pairs")
        pairs.group_by(tumbling("1 minute", on=on)).agg(n=f.count())
        pairs.group_by(session("1 minute", on=on)).agg(n=f.count())
        first, second = [one for name, one in flow.graph.operators.items() if name != "pairs"]
        return first.definition.fingerprint, second.definition.fingerprint

    fingerprints = [made(on) for on in (None, "ordered_at", "shipped_at")]
    assert len({first for first, _ in fingerprints}) == len({second for _, second in fingerprints}) == 3


@pytest.mark.parametrize(("on", "words"), [("id", "(int64)"), ("nothing", "(not a column)")])
def test_a_window_on_something_else_than_a_timestamp_is_refused(on: str, words: str) -> None:
    _, orders, _ = streams()
    with pytest.raises(InputError) as caught:
        orders.group_by(tumbling("1 minute", on=on), name="w").agg(n=f.count())
    assert words in str(caught.value)
    assert "ordered_at" in caught.value.fix


def test_a_window_join_takes_event_times_only() -> None:
    _, orders, shipments = streams()
    with pytest.raises(InputError, match="event times of both streams, not 'ordered_at'"):
        orders.join(shipments, "id", window=tumbling("1 minute", on="ordered_at"))


# ---- where event times come from -----------------------------------------------------------------------------


def test_lags_of_time_columns_follow_steps_joins_and_windows() -> None:
    flow, orders, shipments = streams()

    def lags(stream: Stream) -> Lags:
        return time_lags(flow.graph, stream.edge)

    def words(stream: Stream) -> str:
        return event_time_text(flow.graph, stream.edge)

    renamed = orders.where("id > 0").select("id", "ordered_at as at")
    assert (lags(renamed), words(renamed)) == ({"at": EXACT}, "at")
    assert words(orders.select("id")) == "ordered_at (before select)"
    assert words(orders.select("id").where("id > 1").select("id")) == "ordered_at (before select)"
    assert lags(orders.with_columns(ordered_at="ordered_at + interval 1 hour")) == {}
    pairs = orders.join(shipments, "id", within=between("1 minute", "5 minutes"), name="pairs")
    assert lags(pairs) == {"ordered_at": Lag(MINUTE, 5 * MINUTE), "shipped_at": EXACT}
    assert words(pairs) == "shipped_at"
    around = orders.join(shipments, "id", within=between("-1 minute", "5 minutes"), how="left", name="around")
    assert lags(around) == {"ordered_at": Lag(0, 5 * MINUTE), "shipped_at": Lag(0, MINUTE)}
    assert words(around) == "the later of ordered_at and shipped_at"
    windows = pairs.group_by("id", tumbling("10 minutes"), name="windows").agg(n=f.count())
    assert lags(windows) == {"window_start": Lag(10 * MINUTE - 1, 10 * MINUTE - 1), "window_end": Lag(-1, -1)}
    assert words(windows) == "window_end - 1 microsecond"
    then = orders.join(shipments, "id", as_of=as_of(tolerance="1 hour"), name="then")
    assert lags(then) == {"ordered_at": EXACT, "shipped_at": Lag(0, 60 * MINUTE)}
    both = orders.select("id", "ordered_at as at").union(shipments.select("id", "shipped_at as at"))
    assert event_time_columns(flow.graph, both.edge) == ["at"]
    first = orders.deduplicate("id", name="first")
    assert words(first) == "ordered_at"
    best = orders.group_by("id", tumbling("1 minute"), name="best").top(1, "id")
    assert lags(best)["ordered_at"] == Lag(0, MINUTE - 1)
    totals = orders.key_by("id", name="totals").agg(n=f.count())
    assert (lags(totals), words(totals)) == ({}, "the latest of the key (ordered_at)")


def test_windows_on_window_end_chain_without_late_rows() -> None:
    flow, orders, _ = streams()
    first = orders.group_by("id", tumbling("1 minute"), name="first").agg(n=f.count())
    first.group_by(tumbling("5 minutes", on="window_end"), name="second").agg(n=f.sum("n"))
    with testing.run(flow) as t:
        for minute in range(10):
            t.feed("orders", [order(minute % 2, minute + 0.5)])
        t.watermark(100 * MINUTE)
        assert counts(t, "second") == {0: 4, 5: 5, 10: 1}
        assert t.counts["second", "rows_late"] == 0


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (60_000_000, "1 minute"),
        (-600_000_000, "-10 minutes"),
        (5_400_000_000, "1 hour 30 minutes"),
        (0, "0 seconds"),
        (1_001, "1 millisecond 1 microsecond"),
        (14 * 86_400_000_000, "14 days"),
    ],
)
def test_durations_are_written_as_they_are_read(span: int, text: str) -> None:
    assert duration_text(span) == text
    assert parse_duration(text) == span
