"""One flow step of every kind of operator, each called `out`, over two sources of random rows.

State of those that would remember for ever is kept for 50 us.
"""

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from statebed.aggregates import functions as f
from statebed.flow import Stream, as_of, between, window_calls
from statebed.format.schema import TIMESTAMP
from statebed.operators.process import Context, ListState, MapState, Process, ValueState
from statebed.operators.window_definition import cumulative, session, sliding, tumbling

TTL = "50 us"
Step = Callable[[Stream, Stream], Stream]


class Remember(Process):
    """States of all kinds, and a timer 20 us after the latest row of a key, which clears them."""

    sums = ValueState("n bigint", ttl=TTL)
    items = ListState("v bigint", ttl=TTL)
    kinds = MapState(key="string", value="bigint", ttl=TTL)
    output = "k string, n bigint"

    def on_batch(self, rows: pa.RecordBatch, ctx: Context) -> pa.Table:
        n = pc.add(pc.fill_null(ctx.get(self.sums)["n"], 0), pa.array(ctx.key_sizes))
        ctx.put(self.sums, pa.table({"n": n}))
        ctx.append(self.items, pa.table({"v": rows["v"]}))
        ctx.put_items(self.kinds, pc.fill_null(rows["t"], "none"), pc.fill_null(rows["v"], 0))
        latest = rows["_time"].cast(pa.int64()).take(pa.array(ctx.key_starts + ctx.key_sizes - 1))
        ctx.timer(pc.add(latest, 20).cast(TIMESTAMP))
        return ctx.keys.append_column("n", n)

    def on_timer(self, timers: pa.RecordBatch, ctx: Context) -> None:
        for state in (self.sums, self.items, self.kinds):
            ctx.delete(state)


def _joined(how: str) -> dict[str, Step]:
    return {
        f"interval_join_{how}": lambda left, right: left.join(
            right, "k", within=between("-9 us", "4 us"), how=how, condition="v >= v_right", name="out"
        ),
        f"window_join_{how}": lambda left, right: left.join(
            right, "k", window=sliding("10 us", "4 us"), how=how, name="out"
        ),
        f"updating_join_{how}": lambda left, right: left.join(right, "k", how=how, ttl=TTL, name="out"),
    }


OPERATORS: dict[str, Step] = {
    "tumbling": lambda left, _: left.group_by("k", tumbling("10 us"), name="out").agg(n=f.count(), all=f.sum("v")),
    "sliding_late": lambda left, _: left.group_by("k", sliding("10 us", "4 us"), name="out").agg(
        mean=f.mean("x"), list=f.collect_list("t"), allowed_lateness="15 us"
    ),
    "cumulative_early": lambda left, _: left.group_by("k", cumulative("12 us", "3 us"), name="out").agg(
        kinds=f.count_distinct("t"), middle=f.median("v"), emit="early"
    ),
    "session": lambda left, _: left.group_by("k", session("6 us"), name="out").agg(n=f.count(), last=f.last("v")),
    "session_late": lambda left, _: left.group_by("k", session("6 us"), name="out").agg(
        n=f.count(), emit="early", allowed_lateness="15 us"
    ),
    "updating_aggregate": lambda left, _: left.key_by("k", name="out").agg(n=f.count(), mean=f.mean("x"), ttl=TTL),
    "first": lambda left, _: left.key_by("k", name="out").deduplicate(ttl=TTL),
    "last": lambda left, _: left.key_by("k", name="out").deduplicate(keep="last", ttl=TTL),
    "top": lambda left, _: left.key_by("k", name="out").top(2, "v desc", numbering="rank", number="place", ttl=TTL),
    "window_top": lambda left, _: left.group_by("k", tumbling("10 us"), name="out").top(2, "v desc"),
    "window_functions": lambda left, _: left.group_by("k", sliding("10 us", "4 us"), name="out").over(
        "v desc", place=window_calls.rank(), before=window_calls.lag("t"), total=window_calls.running_sum("v")
    ),
    **_joined("inner"),
    **_joined("full"),
    "interval_join_semi": lambda left, right: left.join(
        right, "k", within=between("-9 us", "4 us"), how="semi", name="out"
    ),
    "as_of": lambda left, right: left.join(right, "k", as_of=as_of(tolerance=TTL), how="left", name="out"),
    "process": lambda left, _: left.key_by("k", name="out").process(Remember()),
}
VARIANTS = (
    "sliding_late",
    "cumulative_early",
    "session",
    "first",
    "top",
    "interval_join_inner",
    "interval_join_semi",
    "window_join_inner",
    "updating_join_inner",
)
"""Operators with the tables of another one in `KINDS`."""
KINDS = [name for name in OPERATORS if name not in VARIANTS]
