"""Windows in a flow, as a user's own test would run them."""

from typing import Any

import pyarrow as pa
import pytest

from statebed import testing
from statebed.aggregates import functions as f
from statebed.errors import InputError
from statebed.flow import Flow, Stream
from statebed.flow.graph import OperatorNode
from statebed.operators import sliding, tumbling
from statebed.operators.aggregation import Aggregation
from statebed.operators.window_definition import session

COLUMNS = pa.schema([("driver", pa.string()), ("fare", pa.float64()), ("ts", pa.timestamp("us", "UTC"))])
NOON = "2026-01-01T12:00:00Z"


def at(minute: int, second: int = 0) -> str:
    return f"2026-01-01T12:{minute:02}:{second:02}+00:00"


def ride(driver: str | None, fare: float | None, minute: int, second: int = 0) -> dict[str, Any]:
    return {"driver": driver, "fare": fare, "ts": at(minute, second)}


def flow_of(**options: Any) -> tuple[Flow, Stream]:
    flow = Flow("rides")
    rides = flow.source("rides", COLUMNS, watermark=("ts", "2 minutes"))
    per_minute = (
        rides.where("fare > 0")
        .group_by("driver", tumbling("1 minute"), name="per_minute")
        .agg(trips=f.count(), total=f.sum("fare * 2"), large=f.count(where="fare > 10"), **options)
    )
    return flow, per_minute


def brief(rows: list[dict[str, Any]]) -> set[tuple[Any, ...]]:
    return {(row["driver"], row["window_start"].minute, row["trips"], row["total"], row["large"]) for row in rows}


def test_windows_close_by_the_watermark_and_survive_crashes_and_rescaling() -> None:
    flow, _ = flow_of()
    with testing.run(flow, parallelism=2) as t:
        t.feed("rides", [ride("ann", 5.0, 0, 1), ride("bob", 20.0, 0, 2), ride("bob", -1.0, 0, 3)])
        t.crash()
        t.feed("rides", [ride("ann", 7.0, 0, 59), ride(None, 1.0, 0, 30), ride("ann", 1.0, 1)])
        assert t.output("per_minute") == []
        t.rescale(3)
        t.watermark(at(1))
        assert brief(t.output("per_minute")) == {
            ("ann", 0, 2, 24.0, 0),
            ("bob", 0, 1, 40.0, 1),
            (None, 0, 1, 2.0, 0),
        }
        t.crash()
        t.watermark(at(9))
        assert len(t.output("per_minute")) == 4
        assert t.state_rows("per_minute") == 0


def test_watermarks_follow_event_times_by_sparks_rule_until_the_test_says_otherwise() -> None:
    flow, _ = flow_of()
    with testing.run(flow) as t:
        t.feed("rides", [ride("ann", 5.0, 0)])
        t.feed("rides", [ride("ann", 5.0, 4)])  # the watermark of the next epoch is 12:02
        assert t.output("per_minute") == []
        t.tick()
        assert brief(t.output("per_minute")) == {("ann", 0, 1, 10.0, 0)}


def test_p9_late_rows_are_counted_and_can_be_had_with_their_columns() -> None:
    flow, _ = flow_of()
    with testing.run(flow) as t:
        t.watermark(at(5))
        t.feed("rides", [ride("ann", 5.0, 0, 30), ride("ann", 5.0, 5)])
        (late,) = t.late("per_minute")
        assert (late["driver"], late["fare"], late["ts"].isoformat()) == ("ann", 5.0, at(0, 30))
        assert late["late_by"].total_seconds() == 4.5 * 60
        assert (late["watermark"].isoformat(), late["operator"]) == (at(5), "per_minute")
        assert t.counts["per_minute", "rows_late"] == 1
        assert t.counts["per_minute", "rows_in"] == 2


def test_early_results_are_taken_back_when_they_change() -> None:
    flow, _ = flow_of(emit="early")
    with testing.run(flow) as t:
        t.feed("rides", [ride("ann", 5.0, 0)])
        assert brief(t.output("per_minute")) == {("ann", 0, 1, 10.0, 0)}
        t.feed("rides", [ride("ann", 6.0, 0), ride("bob", 1.0, 1)])
        assert brief(t.output("per_minute")) == {("ann", 0, 2, 22.0, 0), ("bob", 1, 1, 2.0, 0)}
        changes = t.changes("per_minute").to_pylist()
        assert [(row["epoch"], row["_weight"], row["trips"]) for row in changes if row["driver"] == "ann"] == [
            (0, 1, 1),
            (1, -1, 1),
            (1, 1, 2),
        ]
        t.watermark(at(5))
        assert len(t.changes("per_minute")) == len(changes), "a result that was shown is not shown again at close"
        assert t.state_rows("per_minute") == 0


def test_late_rows_inside_the_allowed_lateness_change_a_closed_result_and_later_ones_are_late() -> None:
    flow, _ = flow_of(allowed_lateness="2 minutes")
    with testing.run(flow) as t:
        t.feed("rides", [ride("ann", 5.0, 0), ride("bob", 5.0, 0)])
        t.watermark(at(1))
        assert len(t.output("per_minute")) == 2
        t.feed("rides", [ride("ann", 6.0, 0), ride("cid", 1.0, 0)])
        assert brief(t.output("per_minute")) == {("ann", 0, 2, 22.0, 0), ("bob", 0, 1, 10.0, 0), ("cid", 0, 1, 2.0, 0)}
        t.watermark(at(3))
        t.feed("rides", [ride("ann", 6.0, 0)])
        assert len(t.late("per_minute")) == 1
        assert t.state_rows("per_minute") == 0


def test_windows_of_windows_do_not_call_each_others_results_late() -> None:
    flow, per_minute = flow_of()
    per_minute.group_by("driver", tumbling("5 minutes"), name="per_five").agg(
        minutes=f.count(), trips=f.sum("trips"), best=f.max("total")
    )
    with testing.run(flow, parallelism=2) as t:
        for minute in range(12):
            t.feed("rides", [ride("ann", 1.0 + minute, minute), ride("ann", 1.0, minute, 1)])
        t.watermark(at(30))
        assert t.counts["per_five", "rows_late"] == 0
        found = {
            (row["window_start"].minute, row["minutes"], row["trips"], row["best"]) for row in t.output("per_five")
        }
        assert found == {(0, 5, 10, 12.0), (5, 5, 10, 22.0), (10, 2, 4, 26.0)}


def test_early_results_pass_through_a_second_window_as_a_changelog() -> None:
    flow, per_minute = flow_of(emit="early")
    per_minute.group_by(sliding("4 minutes", "2 minutes"), name="all").agg(
        drivers=f.count(), trips=f.sum("trips"), emit="early"
    )
    with testing.run(flow, parallelism=2) as t:
        t.feed("rides", [ride("ann", 5.0, 0), ride("bob", 5.0, 0)])
        t.feed("rides", [ride("ann", 5.0, 0)])
        found = {(row["window_start"].minute, row["drivers"], row["trips"]) for row in t.output("all")}
        assert found == {(0, 2, 3), (58, 2, 3)}


def test_an_epoch_that_is_lost_before_its_commit_is_done_again_with_the_same_result() -> None:
    flow, _ = flow_of()
    with testing.run(flow, parallelism=2) as t:
        t.feed("rides", [ride("ann", 5.0, 0)])
        t.crash_in("rides", [ride("ann", 5.0, 0), ride("bob", 2.0, 0)])
        t.watermark(at(1))
        assert brief(t.output("per_minute")) == {("ann", 0, 2, 20.0, 0), ("bob", 0, 1, 4.0, 0)}


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda s: s.where("fair > 0"), "fair"),
        (lambda s: s.group_by("driver", name="x"), "takes one"),
        (lambda s: s.group_by("driver", tumbling("1 minute"), name="rides").agg(n=f.count()), "called 'rides'"),
        (lambda s: s.group_by("driver", tumbling("1 minute")).agg(), "no aggregate"),
        (lambda s: s.group_by("driver", tumbling("1 minute")).agg(n=f.count(), emit="soon"), "got 'soon'"),
        (lambda s: s.side("late"), "no output 'late'"),
        (lambda s: s.union(s.select("driver")), "union"),
    ],
)
def test_mistakes_are_found_when_the_flow_is_written(build: Any, message: str) -> None:
    flow = Flow("rides")
    stream = flow.source("rides", COLUMNS, watermark=("ts", "2 minutes"))
    with pytest.raises(InputError, match=message):
        build(stream)


def test_rows_and_names_that_a_flow_does_not_have_are_refused() -> None:
    flow, _ = flow_of()
    with testing.run(flow) as t:
        with pytest.raises(InputError, match="no source 'ride'"):
            t.feed("ride", [])
        with pytest.raises(InputError, match=r"\['far'\]"):
            t.feed("rides", [{"far": 1}])
        with pytest.raises(InputError, match="no part 'x'"):
            t.output("x")


@pytest.mark.parametrize("window", [None, tumbling("1 minute"), session("1 minute")])
def test_results_that_contain_all_values_of_a_group_are_known_unless_they_have_a_limit(window: Any) -> None:
    flow = Flow("rides")
    rows = flow.source("rows", "k bigint, v bigint, s string, ts timestamp", watermark=("ts", "0 s"))
    grouped = rows.key_by("k", name="grouped") if window is None else rows.group_by("k", window, name="grouped")
    grouped.agg(
        items=f.collect_list("v"),
        some=f.collect_list("v", limit=3),
        members=f.collect_set("v"),
        few=f.collect_set("v", limit=3),
        words=f.string_agg("s", ","),
        middle=f.median("v"),
        often=f.mode("v"),
        different=f.count_distinct("v"),
        total=f.sum("v"),
    )
    operators = [node.operator for node in flow.graph.nodes if isinstance(node, OperatorNode)]
    assert [operator.whole_results for operator in operators if isinstance(operator, Aggregation)] == [
        ["items", "members", "words"]
    ]
