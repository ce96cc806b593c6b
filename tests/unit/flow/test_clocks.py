"""Watermarks of a graph by Spark's rule, through chains, idle sources and drains."""

from dataclasses import replace

import statebed as sb
from statebed.flow.clocks import SourceClock, drained_clocks, is_due, marks_of, next_clocks, operator_clocks

SECOND = 1_000_000
MINUTE = 60 * SECOND
SCHEMA = "driver string, fare bigint, ts timestamp"


def windows() -> sb.Flow:
    flow = sb.Flow("rides")
    rides = flow.source("rides", SCHEMA, watermark=("ts", "10 seconds"))
    per_minute = rides.group_by("driver", sb.tumbling("1 minute"), name="minutes").agg(n=sb.count())
    per_minute.group_by(sb.tumbling("1 minute"), name="again").agg(most=sb.max("n"))
    return flow


def joined(idle_after: str | None = None) -> sb.Flow:
    flow = sb.Flow("rides")
    left = flow.source("left", SCHEMA, watermark=("ts", "0s"), idle_after=idle_after)
    right = flow.source("right", SCHEMA, watermark=("ts", "0s"), idle_after=idle_after)
    left.join(right, on="driver", within=sb.between("-1 minute", "0s"), how="left", name="pairs")
    return flow


def test_the_watermark_follows_one_epoch_behind_and_lateness_two() -> None:
    graph = windows().graph
    first = next_clocks(graph, {})
    assert marks_of(operator_clocks(graph, first, {}, epoch_time_us=0)) == {"minutes": None, "again": None}
    second = next_clocks(graph, {"rides": first["rides"].seen(100 * SECOND, epoch_time_us=0)})
    before = operator_clocks(graph, second, {}, epoch_time_us=1)
    assert (before["minutes"].late_us, before["minutes"].watermark_us) == (None, 90 * SECOND)
    third = next_clocks(graph, {"rides": second["rides"].seen(500 * SECOND, epoch_time_us=1)})
    after = operator_clocks(graph, third, marks_of(before), epoch_time_us=2)
    assert (after["minutes"].late_us, after["minutes"].watermark_us) == (90 * SECOND, 490 * SECOND)


def test_a_watermark_never_goes_back_when_the_delay_grows_or_a_source_comes_new() -> None:
    graph = windows().graph
    clock = SourceClock(watermark_us=400, max_event_time_us=500)
    assert clock.next(1000).watermark_us == 400
    assert (
        operator_clocks(graph, {"rides": SourceClock()}, {"minutes": 7}, epoch_time_us=0)["minutes"].watermark_us == 7
    )


def test_an_epoch_without_rows_is_due_only_when_the_watermark_crosses_an_edge() -> None:
    graph = windows().graph

    def due(before: int, after: int) -> bool:
        sources = {"rides": SourceClock(watermark_us=after)}
        return is_due(graph, operator_clocks(graph, sources, {"minutes": before, "again": before}, epoch_time_us=0))

    assert not due(10 * MINUTE + 5, 11 * MINUTE - 1)
    assert due(10 * MINUTE + 5, 11 * MINUTE)


def test_an_operator_waits_for_the_slower_of_its_sources_unless_that_is_idle() -> None:
    fast = SourceClock(watermark_us=100, max_event_time_us=100, last_rows_us=1000 * SECOND)
    slow = SourceClock(watermark_us=40, max_event_time_us=40, last_rows_us=900 * SECOND)

    def mark(graph: sb.Flow, now: int, right: SourceClock = slow) -> int | None:
        clocks = operator_clocks(graph.graph, {"left": fast, "right": right}, {}, epoch_time_us=now * SECOND)
        return clocks["pairs"].watermark_us

    assert mark(joined(), 10_000) == 40
    assert mark(joined("100 seconds"), 999) == 40
    assert mark(joined("100 seconds"), 1000) == 100
    assert mark(joined("100 seconds"), 1000, right=SourceClock()) is None
    assert mark(joined("100 seconds"), 1000, right=replace(SourceClock(), last_rows_us=0)) == 100


def test_a_drain_closes_what_is_open_in_every_level_and_nothing_that_has_not_begun() -> None:
    graph = windows().graph
    clocks = drained_clocks(graph, {"rides": SourceClock(max_event_time_us=90 * SECOND)}, {}, epoch_time_us=0)
    # Results of the first operator end with 119.999999 s, so the second closes at two minutes, too.
    assert marks_of(clocks) == {"minutes": 2 * MINUTE, "again": 2 * MINUTE}
    sources = {"left": SourceClock(max_event_time_us=5), "right": SourceClock()}
    assert drained_clocks(joined().graph, sources, {}, epoch_time_us=0)["pairs"].watermark_us == 5
