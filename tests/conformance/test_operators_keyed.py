"""Operators by key, without a time of their own or with functions over windows, equal DuckDB's batch answer."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from conformance.answers import COLUMNS, assert_late, assert_same, select, windows
from conformance.streams import SHORT_AND_LONG, Script, for_each, play, source
from conformance.test_operators_windows import WINDOWS, newest_end, some_aggregates

from statebed.aggregates import functions as f
from statebed.flow import Flow, window_calls
from statebed.format.schema import TIMESTAMP
from statebed.operators.process import Context, Process, ValueState
from statebed.operators.window_definition import tumbling

REST = ["v", "big", "m", "t", "ts", "x"]
"""The columns beside the keys k and d."""
TIES = ", ".join(f"{name} nulls last" for name in REST)
NUMBERINGS = ["row_number", "rank", "dense_rank"]


@SHORT_AND_LONG
@pytest.mark.parametrize("keys", [("k", "d"), ()], ids=["keyed", "global"])
def test_p6_running_aggregates_equal_duckdb_over_all_rows(keys: tuple[str, ...], effort: int) -> None:
    def check(script: Script) -> None:
        ours, theirs = some_aggregates(script)
        flow = Flow("conformance")
        source(flow).where("ts is not null").key_by(*keys, name="out").agg(**ours)
        shown, grouped = "".join(f"{key}, " for key in keys), ", ".join(keys) or "()"
        query = f"select {shown} {theirs} from fed where ts is not null group by {grouped} having count(*) > 0"
        with play(flow, script) as played:
            assert_same(played.run.table("out"), select(query, fed=played.rows()))
            assert_late(played, "out", "false", given="ts is not null")

    for_each(check, keys, examples=2 * effort)


@SHORT_AND_LONG
def test_p6_a_running_aggregate_of_a_running_aggregate_equals_duckdb(effort: int) -> None:
    """The input is a changelog: every change of a group retracts the result before it."""
    flow = Flow("conformance")
    inner = source(flow).key_by("k", "d", name="inner").agg(n=f.count(), total=f.sum("v"), least=f.min("t"))
    inner.key_by("n", name="out").agg(
        groups=f.count(), total=f.sum("total"), least=f.min("least"), all_totals=f.collect_set("total")
    )
    query = """
        with groups as (select k, d, count(*) as n, sum(v) as total, min(t) as least from fed group by k, d)
        select n, count(*) as groups, sum(total) as total, min(least) as least,
            coalesce(list(distinct total order by total) filter (total is not null), []) as all_totals
        from groups group by n"""

    def check(script: Script) -> None:
        with play(flow, script) as played:
            assert_same(played.run.table("out"), select(query, fed=played.rows()))
            assert played.run.counts["out", "unknown_retractions"] == 0

    for_each(check, "running", examples=2 * effort)


@SHORT_AND_LONG
def test_p6_the_first_row_of_a_key_equals_duckdb(effort: int) -> None:
    """The first epoch decides, then event time, then all columns."""
    flow = Flow("conformance")
    source(flow).deduplicate("k", "d", name="out")
    query = f"""
        select {COLUMNS} from fed where ts is null or seen is null or ts > seen
        qualify row_number() over (partition by k, d order by epoch, ts nulls last, {TIES}) = 1"""

    def check(script: Script) -> None:
        with play(flow, script) as played:
            assert_same(played.run.table("out"), select(query, fed=played.rows()))
            assert_late(played, "out", "ts <= seen")

    for_each(check, "first", examples=3 * effort)


@SHORT_AND_LONG
def test_p6_the_last_row_of_a_key_equals_duckdb(effort: int) -> None:
    flow = Flow("conformance")
    source(flow).deduplicate("k", "d", keep="last", name="out")
    order = ", ".join(f"{name} desc nulls first" for name in REST)
    query = f"""
        select {COLUMNS} from fed where ts is not null
        qualify row_number() over (partition by k, d order by ts desc, {order}) = 1"""

    def check(script: Script) -> None:
        with play(flow, script) as played:
            assert_same(played.run.table("out"), select(query, fed=played.rows()))
            assert_late(played, "out", "ts is null")

    for_each(check, "last", examples=3 * effort)


@SHORT_AND_LONG
@pytest.mark.parametrize("numbering", NUMBERINGS)
def test_p6_the_first_rows_of_a_key_equal_duckdb(numbering: str, effort: int) -> None:
    def check(script: Script) -> None:
        by, n = script.pick(["v desc", "x", "t desc nulls first", "m"]), script.pick([1, 2, 3])
        flow = Flow("conformance")
        source(flow).key_by("k", "d", name="out").top(n, by, numbering=numbering, number="place")
        order = spark_order(by) + (f", {TIES}" if numbering == "row_number" else "")
        query = f"""
            select {COLUMNS}, ({numbering}() over (partition by k, d order by {order}))::int as place
            from fed qualify place <= {n}"""
        with play(flow, script) as played:
            assert_same(played.run.table("out"), select(query, fed=played.rows()))
            assert_late(played, "out", "false")

    for_each(check, numbering, examples=2 * effort)


@SHORT_AND_LONG
@pytest.mark.parametrize("numbering", NUMBERINGS)
def test_p6_the_first_rows_of_a_key_and_window_equal_duckdb(numbering: str, effort: int) -> None:
    def check(script: Script) -> None:
        by, n = script.pick(["v desc", "x", "t desc nulls first", "m"]), script.pick([1, 2, 3])
        window = script.pick(list(WINDOWS.values()))
        flow = Flow("conformance")
        source(flow).group_by("k", "d", window, name="out").top(n, by, numbering=numbering, number="place")
        order = spark_order(by) + (f", {TIES}" if numbering == "row_number" else "")
        query = f"""
            select k, d, window_start, window_end, {", ".join(REST)},
                ({numbering}() over (partition by k, d, window_end order by {order}))::int as place
            from {windows(window, "fed")} qualify place <= {n}"""
        with play(flow, script) as played:
            assert_same(played.run.table("out"), select(query, fed=played.rows()))
            assert_late(played, "out", f"ts is null or {newest_end(window)} <= seen")
            assert played.run.state_rows("out") == 0

    for_each(check, numbering, examples=2 * effort)


def spark_order(by: str) -> str:
    """The same order for DuckDB: unless it says so, nulls come first when it ascends, and last when it descends."""
    return by if "nulls" in by else f"{by} nulls {'last' if by.endswith('desc') else 'first'}"


CALLS: dict[str, tuple[Any, str]] = {
    "number": (window_calls.row_number(), "row_number() over full_order"),
    "place": (window_calls.rank(), "rank() over peers"),
    "dense": (window_calls.dense_rank(), "dense_rank() over peers"),
    "share": (window_calls.percent_rank(), "percent_rank() over peers"),
    "below": (window_calls.cume_dist(), "cume_dist() over peers"),
    "third": (window_calls.ntile(3), "ntile(3) over full_order"),
    "before": (window_calls.lag("v"), "lag(v) over full_order"),
    "ahead": (window_calls.lead("t", 2, "none"), "lead(t, 2, 'none') over full_order"),
    "opening": (window_calls.first_value("big"), "first_value(big) over full_order"),
    "closing": (window_calls.last_value("m"), "last_value(m) over whole"),
    "so_far": (window_calls.running_count("v"), "count(v) over up_to_here"),
    "total": (window_calls.running_sum("v"), "sum(v) over up_to_here"),
    "least": (window_calls.running_min("x"), "min(x) over up_to_here"),
    "most": (window_calls.running_max("t"), "max(t) over up_to_here"),
    "average": (window_calls.running_mean("v"), "avg(v) over up_to_here"),
}


@SHORT_AND_LONG
def test_p6_functions_over_the_rows_of_a_window_equal_duckdb(effort: int) -> None:
    def check(script: Script) -> None:
        by, window = script.pick(["v desc", "t", "m desc"]), script.pick(list(WINDOWS.values()))
        flow = Flow("conformance")
        source(flow).group_by("k", "d", window, name="out").over(by, **{name: one for name, (one, _) in CALLS.items()})
        order = f"partition by k, d, window_end order by {spark_order(by)}"
        query = f"""
            select k, d, window_start, window_end, {", ".join(REST)},
                {", ".join(f"{sql} as {name}" for name, (_, sql) in CALLS.items())}
            from {windows(window, "fed")}
            window peers as ({order}), full_order as ({order}, {TIES}),
                up_to_here as ({order}, {TIES} rows between unbounded preceding and current row),
                whole as ({order}, {TIES} rows between unbounded preceding and unbounded following)"""
        with play(flow, script) as played:
            assert_same(played.run.table("out"), select(query, fed=played.rows()))
            assert_late(played, "out", f"ts is null or {newest_end(window)} <= seen")
            assert played.run.state_rows("out") == 0

    for_each(check, "over", examples=4 * effort)


class Tally(Process):
    """Number of rows of a key and their sum, when it gets some, and 10 us after the latest of them."""

    sums = ValueState("n bigint, total bigint")
    output = "k string, n bigint, total bigint, at timestamp"

    def on_batch(self, rows: pa.RecordBatch, ctx: Context) -> pa.Table:
        values = pc.fill_null(rows["v"], 0).to_numpy(zero_copy_only=False)
        before = ctx.get(self.sums)
        n = pc.add(pc.fill_null(before["n"], 0), pa.array(ctx.key_sizes))
        total = pc.add(pc.fill_null(before["total"], 0), pa.array(np.add.reduceat(values, ctx.key_starts)))
        ctx.put(self.sums, pa.table({"n": n, "total": total}))
        latest = rows["_time"].cast(pa.int64()).take(pa.array(ctx.key_starts + ctx.key_sizes - 1))
        ctx.timer(pc.add(latest, 10).cast(TIMESTAMP))
        return pa.table({"k": ctx.keys["k"], "n": n, "total": total, "at": pa.nulls(len(n), TIMESTAMP)})

    def on_timer(self, timers: pa.RecordBatch, ctx: Context) -> pa.Table:
        sums = ctx.get(self.sums).take(pa.array(ctx.key_index))
        return pa.table({"k": timers["k"], "n": sums["n"], "total": sums["total"], "at": timers["at"]})


@SHORT_AND_LONG
def test_p6_a_process_with_state_and_timers_equals_duckdb(effort: int) -> None:
    flow = Flow("conformance")
    source(flow).where("ts is not null").key_by("k", name="out").process(Tally())
    query = """
        with sums as (
            select k, epoch, count(*) as n, sum(coalesce(v, 0)) as total, max(ts) + 10 as due
            from fed where ts > seen or (ts is not null and seen is null) group by k, epoch),
        running as (
            select k, epoch, due, sum(n) over so_far as n, sum(total) over so_far as total
            from sums window so_far as (partition by k order by epoch)),
        fired as (
            select distinct k, due, (
                select min(epochs.epoch) from epochs where watermark >= due and epochs.epoch >= running.epoch) as epoch
            from running)
        select k, n, total, null::bigint as "at" from running
        union all
        select fired.k, n, total, fired.due from fired, running
        where fired.k is not distinct from running.k and running.epoch = (
            select max(epoch) from running as known
            where known.k is not distinct from fired.k and known.epoch <= fired.epoch)"""

    def check(script: Script) -> None:
        with play(flow, script) as played:
            marks = [*played.marks()[1:], 10**18]
            epochs = pa.table(
                {"epoch": pa.array(range(len(marks)), pa.int64()), "watermark": pa.array(marks, pa.int64())}
            )
            assert_same(played.run.table("out"), select(query, fed=played.rows(), epochs=epochs))
            assert_late(played, "out", "ts <= seen", given="ts is not null")
            assert played.run.state("out", "event_timers").num_rows == 0

    for_each(check, "process", examples=3 * effort)


@SHORT_AND_LONG
def test_sketches_stay_within_their_stated_error(effort: int) -> None:
    """HyperLogLog with the precision 12: 1.6 %, so 8 % are five standard errors; percentiles by their accuracy."""
    flow = Flow("conformance")
    stream = source(flow).with_columns(many="v * 1000 + cast(length(t) as bigint)", size="cast(v as double) + 10.5")
    stream.group_by("k", tumbling("10 us"), name="out").agg(
        about=f.approx_count_distinct("many"),
        exactly=f.count_distinct("many"),
        near=f.approx_percentile("size", 0.6, accuracy=0.02),
        sizes=f.collect_list("size"),
    )

    def check(script: Script) -> None:
        with play(flow, script) as played:
            for row in played.run.table("out").select(["about", "exactly", "near", "sizes"]).to_pylist():
                assert abs(row["about"] - row["exactly"]) <= max(1, 0.08 * row["exactly"])
                if row["sizes"]:
                    exact = sorted(row["sizes"])[int(0.6 * (len(row["sizes"]) - 1))]
                    assert abs(row["near"] - exact) <= 0.02 * exact
                else:
                    assert row["near"] is None

    for_each(check, "sketches", examples=2 * effort, rows=60)
