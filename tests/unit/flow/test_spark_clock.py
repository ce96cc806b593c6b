"""Clock of queries that came from Spark: one watermark by policy, passed on by Spark's rules."""

import pytest

from statebed.aggregates.functions import count
from statebed.flow import Flow, between, eq
from statebed.flow.clocks import SourceClock, operator_clocks
from statebed.flow.spark_clock import SparkClock, SparkWatermark
from statebed.flow.stream import Stream
from statebed.operators import tumbling

TWO = (SparkWatermark("one", 1_000), SparkWatermark("other", 5_000))
MS = 1_000


@pytest.mark.parametrize(
    ("policy", "observed", "watermark_ms"),
    [
        ("min", [100_000, 100_000], 95_000),
        ("max", [100_000, 100_000], 99_000),
        ("min", [100_000, None], 0),
        ("max", [100_000, None], 99_000),
        ("min", [500, 100_000], 0),
    ],
)
def test_the_watermark_is_chosen_by_policy_and_never_negative(
    policy: str, observed: list[int | None], watermark_ms: int
) -> None:
    assert SparkClock(TWO, policy).watermark_us(observed) == watermark_ms * MS


def joined(flow: Flow) -> Stream:
    left = flow.source("left", "k string, ts timestamp", watermark=("ts", "1 second"))
    right = flow.source("right", "k string, us timestamp", watermark=("us", "5 seconds"))
    return left.join(right, on=eq("k"), within=between("0s", "20 seconds"), name="join")


def test_all_sources_of_a_query_have_its_watermark_and_results_of_a_join_that_of_its_state() -> None:
    flow = Flow("query")
    joined(flow).group_by(tumbling("1 minute", on="ts"), name="window").agg(n=count())
    clock = SparkClock(TWO)
    flow.graph.spark_clocks |= {"left": clock, "right": clock}
    sources = {"left": SourceClock(), "right": SourceClock()}
    clocks = operator_clocks(flow.graph, sources, {}, epoch_time_us=0, observed_ms=[100_000, 200_000])
    assert clocks["join"].watermark_us == 99_000 * MS
    assert clocks["window"].watermark_us == 79_000 * MS
    later = operator_clocks(flow.graph, sources, {"join": 99_000 * MS}, epoch_time_us=0, observed_ms=[150_000, 200_000])
    assert (later["join"].late_us, later["join"].watermark_us) == (99_000 * MS, 149_000 * MS)


def test_an_operator_without_observed_times_is_at_zero_as_in_spark() -> None:
    flow = Flow("query")
    joined(flow)
    clock = SparkClock(TWO)
    flow.graph.spark_clocks |= {"left": clock, "right": clock}
    clocks = operator_clocks(
        flow.graph, {"left": SourceClock(), "right": SourceClock()}, {}, epoch_time_us=0, observed_ms=[]
    )
    assert (clocks["join"].late_us, clocks["join"].watermark_us) == (0, 0)
