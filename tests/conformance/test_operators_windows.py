"""Windows over random streams equal DuckDB's batch answer over the rows that the watermark admits."""

from typing import Any

import pyarrow as pa
import pytest
from conformance.answers import assert_late, assert_same, plain, select, windows
from conformance.streams import SHORT_AND_LONG, Played, Script, for_each, play, source
from effort import diagonals

from statebed import testing
from statebed.aggregates import functions as f
from statebed.flow import Flow
from statebed.operators.window_definition import Window, cumulative, session, sliding, tumbling

AGGREGATES = {
    "n": (f.count(), "count(*)"),
    "values": (f.count("v"), "count(v)"),
    "total": (f.sum("v", where="t = 'x'"), "sum(v) filter (t = 'x')"),
    "money": (f.sum("m"), "sum(m)"),
    "average": (f.mean("x"), "avg(x)"),
    "low": (f.min("big"), "min(big)"),
    "high": (f.max("t"), "max(t)"),
    "kinds": (f.count_distinct("t"), "count(distinct t)"),
    "opening": (f.first("v"), "first(v order by ts, v nulls last)"),
    "closing": (f.last("t"), "first(t order by ts desc, t nulls last)"),
    "middle": (f.median("v"), "median(v)"),
    "spread": (f.stddev_samp("v"), "stddev_samp(v)"),
    "some": (f.bool_or("v > 5"), "bool_or(v > 5)"),
    "all_values": (f.collect_list("v"), "coalesce(list(v order by ts, v) filter (v is not null), [])"),
}


def some_aggregates(script: Script) -> tuple[dict[str, Any], str]:
    """Every other aggregate, and the same in SQL: most of the time of a stream is spent in aggregates."""
    chosen = list(AGGREGATES.items())[script.pick([0, 1]) :: 2]
    return {name: ours for name, (ours, _) in chosen}, ", ".join(f"{sql} as {name}" for name, (_, sql) in chosen)


WINDOWS = {
    "tumbling": tumbling("10 us"),
    "tumbling_with_offset": tumbling("7 us", offset="3 us"),
    "sliding": sliding("12 us", "4 us"),
    "sliding_no_multiple": sliding("10 us", "4 us", offset="1 us"),
    "cumulative": cumulative("12 us", "3 us"),
}
KEYS = [("k", "d"), ("k",), ()]
EMITS: dict[str, dict[str, Any]] = {"close": {}, "early": {"emit": "early"}, "lateness": {"allowed_lateness": "9 us"}}
EMITS["early_and_lateness"] = EMITS["early"] | EMITS["lateness"]


def newest_end(window: Window) -> str:
    return f"ts - floor_mod(ts - {window.offset_us}, {window.period_us}) + {window.width_us}"


@SHORT_AND_LONG
@pytest.mark.parametrize(("window", "emit"), diagonals(WINDOWS, EMITS, kept=2))
def test_p6_windows_equal_duckdb(window: str, emit: str, effort: int) -> None:
    chosen = WINDOWS[window]
    lateness = 9 if "allowed_lateness" in EMITS[emit] else 0

    def check(script: Script) -> None:
        keys, (ours, theirs) = script.pick(KEYS), some_aggregates(script)
        flow = Flow("conformance")
        source(flow).group_by(*keys, chosen, name="out").agg(**ours, **EMITS[emit])
        shown = ", ".join([*keys, "window_start", "window_end"])
        query = f"select {shown}, {theirs} from {windows(chosen, 'fed', lateness_us=lateness)} group by {shown}"
        with play(flow, script) as played:
            assert_same(played.run.table("out"), select(query, fed=played.rows()))
            assert_late(played, "out", f"ts is null or {newest_end(chosen)} + {lateness} <= seen")
            assert played.run.state_rows("out") == 0

    for_each(check, (window, emit), examples=effort)


GAP = 6


def with_sessions(played: Played, *, lateness_us: int) -> pa.Table:
    """The admitted rows, each with the number of its session.

    Sessions of a key that overlap or touch merge as long as they are kept; one that has left does not come back.
    """
    rows = played.rows()
    key, time, epoch = (rows.column_names.index(name) for name in ("k", "ts", "epoch"))
    admitted = [
        row
        for row in plain(rows)
        if row[time] is not None and (row[-1] is None or row[time] + GAP + lateness_us > row[-1])
    ]
    kept: list[dict[str, Any]] = []
    done: list[dict[str, Any]] = []
    for number, watermark in enumerate(played.marks()[1:]):
        for row in (one for one in admitted if one[epoch] == number):
            new = {"key": row[key], "start": row[time], "end": row[time] + GAP, "rows": [row]}
            for old in [one for one in kept if one["key"] == new["key"]]:
                if old["start"] <= new["end"] and new["start"] <= old["end"]:
                    kept.remove(old)
                    new["start"], new["end"] = min(old["start"], new["start"]), max(old["end"], new["end"])
                    new["rows"] += old["rows"]
            kept.append(new)
        over = [one for one in kept if watermark is not None and one["end"] + lateness_us <= watermark]
        kept = [one for one in kept if one not in over]
        done += over
    numbered = [(*row, number) for number, one in enumerate([*done, *kept]) for row in one["rows"]]
    schema = rows.schema.append(pa.field("number", pa.int64()))
    return pa.table(
        {field.name: pa.array([row[at] for row in numbered], field.type) for at, field in enumerate(schema)}
    )


@SHORT_AND_LONG
@pytest.mark.parametrize("emit", EMITS)
def test_p6_sessions_equal_those_of_a_model_of_their_merging(emit: str, effort: int) -> None:
    lateness = 9 if "allowed_lateness" in EMITS[emit] else 0

    def check(script: Script) -> None:
        ours, theirs = some_aggregates(script)
        flow = Flow("conformance")
        source(flow).group_by("k", session(f"{GAP} us"), name="out").agg(**ours, **EMITS[emit])
        query = f"""
            select k, min(ts) as window_start, max(ts) + {GAP} as window_end, {theirs} from fed group by k, number"""
        with play(flow, script) as played:
            assert_same(played.run.table("out"), select(query, fed=with_sessions(played, lateness_us=lateness)))
            assert_late(played, "out", f"ts is null or ts + {GAP} + {lateness} <= seen")
            assert played.run.state_rows("out") == 0

    for_each(check, emit, examples=effort)


def test_a_session_from_before_the_first_watermark_is_put_out_when_it_closes_not_when_it_leaves() -> None:
    flow = Flow("conformance")
    stream = flow.source("clicks", "k string, ts timestamp", watermark=("ts", "0 us"))
    stream.group_by("k", session("6 us"), name="out").agg(n=f.count(), allowed_lateness="9 us")
    with testing.run(flow) as t:
        t.feed("clicks", [{"k": "a", "ts": 0}])
        t.feed("clicks", [{"k": "b", "ts": 9}])
        t.feed("clicks", [{"k": "b", "ts": 30}])
        assert [row["k"] for row in t.output("out")] == ["a"]
        t.watermark(1000)
        assert sorted(row["k"] for row in t.output("out")) == ["a", "b", "b"]


@SHORT_AND_LONG
@pytest.mark.parametrize(
    "emit",
    ["close", "early_and_lateness", *(pytest.param(emit, marks=pytest.mark.long) for emit in ("early", "lateness"))],
)
def test_p6_sessions_equal_duckdb_when_no_row_is_late(emit: str, effort: int) -> None:
    """A session is the rows that follow each other by no more than the gap, for any split into batches."""
    patient = 2 * 10**10

    def check(script: Script) -> None:
        keys, (ours, theirs) = script.pick(KEYS), some_aggregates(script)
        flow = Flow("conformance")
        stream = source(flow, delay_us=patient)
        stream.group_by(*keys, session(f"{GAP} us"), name="out").agg(**ours, **EMITS[emit])
        partition = f"partition by {', '.join(keys)}" if keys else ""
        query = f"""
            with steps as (select *, ts - lag(ts) over ({partition} order by ts) as step from fed where ts is not null),
            numbered as (
                select *, sum((step is null or step > {GAP})::int) over ({partition} order by ts) as number from steps)
            select {"".join(f"{key}, " for key in keys)} min(ts) as window_start,
                max(ts) + {GAP} as window_end, {theirs}
            from numbered group by {", ".join([*keys, "number"])}"""
        with play(flow, script, delay_us=patient) as played:
            assert_same(played.run.table("out"), select(query, fed=played.rows()))
            assert_late(played, "out", "ts is null")
            assert played.run.state_rows("out") == 0

    for_each(check, emit, examples=effort)
