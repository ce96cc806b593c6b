"""Sessions and running aggregates in a flow."""

from typing import Any

import pytest

from statebed import testing
from statebed.aggregates import functions as f
from statebed.errors import InputError
from statebed.flow import Flow
from statebed.operators.window_definition import session, tumbling

COLUMNS = "user string, n bigint, ts timestamp"


def row(user: str | None, n: int | None, time: int) -> dict[str, Any]:
    return {"user": user, "n": n, "ts": time}


def sessions(**options: Any) -> Flow:
    flow = Flow("clicks")
    clicks = flow.source("clicks", COLUMNS, watermark=("ts", "0s"))
    clicks.group_by("user", session("10 us"), name="visits").agg(clicks=f.count(), total=f.sum("n"), **options)
    return flow


def brief(rows: list[dict[str, Any]]) -> set[tuple[Any, ...]]:
    return {
        (one["user"], one["window_start"].microsecond, one["window_end"].microsecond, one["clicks"], one["total"])
        for one in rows
    }


def test_rows_that_follow_each_other_by_no_more_than_the_gap_are_one_session() -> None:
    with testing.run(sessions(), parallelism=2) as t:
        t.watermark(0)
        t.feed("clicks", [row("ann", 1, 16), row("ann", 2, 5), row("bob", 3, 7), row("ann", 4, 30)])
        t.feed("clicks", [row("ann", 8, 40)])
        t.watermark(20)
        assert brief(t.output("visits")) == {("ann", 5, 15, 1, 2), ("bob", 7, 17, 1, 3)}
        t.watermark(100)
        assert brief(t.output("visits")) == {
            ("ann", 5, 15, 1, 2),
            ("bob", 7, 17, 1, 3),
            ("ann", 16, 26, 1, 1),
            ("ann", 30, 50, 2, 12),
        }
        assert t.state_rows("visits") == 0


def test_sessions_merge_across_epochs_crashes_and_rescales_and_a_row_may_join_two() -> None:
    with testing.run(sessions(), parallelism=3) as t:
        t.watermark(0)
        t.feed("clicks", [row("ann", 1, 5)])
        t.crash()
        t.feed("clicks", [row("ann", 2, 20)])
        t.rescale(2)
        t.feed("clicks", [row("ann", 4, 12)])
        t.watermark(29)
        assert t.output("visits") == []
        t.watermark(30)
        assert brief(t.output("visits")) == {("ann", 5, 30, 3, 7)}
        assert t.state_rows("visits") == 0


def test_a_session_may_go_on_for_ever_and_holds_one_row_and_few_timers() -> None:
    with testing.run(sessions()) as t:
        for time in range(0, 360, 9):
            t.feed("clicks", [row("ann", 1, time)])
        assert t.state("visits", "sessions").num_rows == 1
        assert t.state("visits", "timers").num_rows <= 2
        t.watermark(100_000)
        (found,) = t.output("visits")
        assert found["clicks"] == len(range(0, 360, 9))


def test_a_row_whose_own_session_is_over_is_late_even_if_it_could_join_one() -> None:
    with testing.run(sessions()) as t:
        t.watermark(0)
        t.feed("clicks", [row("ann", 1, 14)])
        t.watermark(20)
        t.feed("clicks", [row("ann", 1, 10), row("ann", 1, 11)])
        assert [late["ts"].microsecond for late in t.late("visits")] == [10]
        t.watermark(50)
        assert brief(t.output("visits")) == {("ann", 11, 24, 2, 2)}


def test_early_sessions_are_taken_back_when_they_grow_or_merge() -> None:
    with testing.run(sessions(emit="early")) as t:
        t.watermark(0)
        t.feed("clicks", [row("ann", 1, 5), row("ann", 2, 20)])
        assert brief(t.output("visits")) == {("ann", 5, 15, 1, 1), ("ann", 20, 30, 1, 2)}
        t.feed("clicks", [row("ann", 4, 12)])
        assert brief(t.output("visits")) == {("ann", 5, 30, 3, 7)}
        before = t.changes("visits").num_rows
        t.watermark(100)
        assert t.changes("visits").num_rows == before
        assert t.state_rows("visits") == 0


def test_a_closed_session_takes_late_rows_for_the_allowed_lateness() -> None:
    with testing.run(sessions(allowed_lateness="20 us")) as t:
        t.watermark(0)
        t.feed("clicks", [row("ann", 1, 5)])
        t.watermark(15)
        assert brief(t.output("visits")) == {("ann", 5, 15, 1, 1)}
        t.feed("clicks", [row("ann", 1, 8)])
        assert t.output("visits") == [], "it is open again, until its new end"
        t.watermark(18)
        assert brief(t.output("visits")) == {("ann", 5, 18, 2, 2)}
        t.feed("clicks", [row("ann", 5, 7)])
        assert brief(t.output("visits")) == {("ann", 5, 18, 3, 7)}
        t.watermark(38)
        assert t.state_rows("visits") == 0
        t.feed("clicks", [row("ann", 1, 8)])
        assert len(t.late("visits")) == 1


def running(**options: Any) -> Flow:
    flow = Flow("clicks")
    clicks = flow.source("clicks", COLUMNS, watermark=("ts", "0s"))
    per_user = clicks.key_by("user", name="per_user").agg(clicks=f.count(), most=f.max("n"), **options)
    per_user.key_by("clicks", name="histogram").agg(users=f.count(), highest=f.max("most"))
    return flow


def test_a_running_result_stands_until_it_changes_and_a_second_one_follows_it() -> None:
    with testing.run(running(), parallelism=2) as t:
        t.feed("clicks", [row("ann", 1, 5), row("bob", 7, 5), row(None, 3, 5)])
        t.feed("clicks", [row("ann", 9, 3), row("ann", 2, 6)])
        t.crash()
        t.rescale(3)
        found = {(one["user"], one["clicks"], one["most"]) for one in t.output("per_user")}
        assert found == {("ann", 3, 9), ("bob", 1, 7), (None, 1, 3)}
        counts = {(one["clicks"], one["users"], one["highest"]) for one in t.output("histogram")}
        assert counts == {(1, 2, 7), (3, 1, 9)}
        t.feed("clicks", [row("bob", 1, 9), row("bob", 1, 9), row(None, 1, 1), row(None, 1, 2)])
        counts = {(one["clicks"], one["users"], one["highest"]) for one in t.output("histogram")}
        assert counts == {(3, 3, 9)}
        assert t.state("histogram", "groups").num_rows == 1, "a group without rows is no group"


def test_a_result_that_stays_the_same_is_not_said_again() -> None:
    flow = Flow("clicks")
    clicks = flow.source("clicks", COLUMNS)
    clicks.key_by("user", name="largest").agg(most=f.max("n"))
    with testing.run(flow) as t:
        t.feed("clicks", [{"user": "ann", "n": 5}])
        t.feed("clicks", [{"user": "ann", "n": 3}])
        assert t.changes("largest")["_weight"].to_pylist() == [1]


def test_groups_expire_by_event_time_and_rows_that_would_expire_at_once_are_late() -> None:
    with testing.run(running(ttl="10 us")) as t:
        t.watermark(0)
        t.feed("clicks", [row("ann", 1, 5), row("bob", 1, 8)])
        t.watermark(15)
        assert t.state("per_user", "groups")["user"].to_pylist() == ["bob"]
        t.feed("clicks", [row("ann", 1, 5), row("ann", 1, 16)])
        assert t.counts["per_user", "rows_late"] == 1
        assert t.state("per_user", "groups").num_rows == 2


def test_sessions_of_a_changelog_are_refused_with_the_reason() -> None:
    flow = Flow("clicks")
    clicks = flow.source("clicks", COLUMNS, watermark=("ts", "0s"))
    early = clicks.group_by("user", tumbling("10 us")).agg(n=f.count(), emit="early")
    with pytest.raises(InputError, match="split a session"):
        early.group_by("user", session("5 us")).agg(n=f.count())
