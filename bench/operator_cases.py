"""The operators as cases: a flow, the same question to DuckDB over all rows at once, and to pandas."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd  # type: ignore[import-untyped]  # it ships no types
import pyarrow as pa

from statebed.aggregates import functions as f
from statebed.flow import Flow, Stream, as_of, between
from statebed.flow.window_calls import row_number
from statebed.operators import sliding, tumbling
from statebed.operators.window_definition import session

MINUTE_US = 60_000_000
COLUMNS = "k bigint, v bigint, x double, ts timestamp"
PAIRED = ("k", "v", "x", "v_right", "x_right")
Frames = dict[str, pd.DataFrame]


@dataclass(frozen=True)
class OperatorCase:
    """One operator."""

    name: str
    build: Callable[[dict[str, Stream]], Stream]
    sql: str
    """Query over the tables `a` and `b`, with a macro `minute`. Its columns are those of the operator's output."""
    frame: Callable[[Frames], pd.DataFrame]
    sources: tuple[str, ...] = ("a",)

    def flow(self) -> Flow:
        flow = Flow("bench")
        streams = {name: flow.source(name, COLUMNS, watermark=("ts", "10 s")) for name in self.sources}
        self.build(streams).named("result")
        return flow


def events(rows: int, keys: int, seed: int) -> pa.Table:
    """Rows in about the order of their times: ten minutes in all, a little out of order."""
    draw = np.random.default_rng(seed)
    times = np.linspace(0, 10 * MINUTE_US, rows, endpoint=False).astype(np.int64) + draw.integers(0, 5_000_000, rows)
    return pa.table(
        {
            "k": pa.array(draw.integers(0, keys, rows)),
            "v": pa.array(draw.integers(0, 1000, rows)),
            "x": pa.array(draw.integers(0, 1 << 20, rows) / 64.0),
            "ts": pa.array(times).cast(pa.timestamp("us", tz="UTC")),
        }
    )


def _minutes(frame: pd.DataFrame) -> pd.DataFrame:
    start = frame["ts"].dt.floor("1min")
    return frame.assign(window_start=start, window_end=start + pd.Timedelta("1min"))


def _tumbling(frames: Frames) -> pd.DataFrame:
    grouped = _minutes(frames["a"]).groupby(["k", "window_start", "window_end"], as_index=False)
    return grouped.agg(n=("v", "size"), total=("v", "sum"), most=("x", "max"))


def _sliding(frames: Frames) -> pd.DataFrame:
    start = frames["a"]["ts"].dt.floor("1min")
    moved = [frames["a"].assign(window_start=start - pd.Timedelta(minutes=back)) for back in range(2)]
    both = pd.concat(moved)
    both["window_end"] = both["window_start"] + pd.Timedelta("2min")
    return both.groupby(["k", "window_start", "window_end"], as_index=False).agg(n=("v", "size"), total=("v", "sum"))


def _session(frames: Frames) -> pd.DataFrame:
    frame = frames["a"].sort_values(["k", "ts"])
    gap = pd.Timedelta("1min")
    begins = (frame["k"] != frame["k"].shift()) | (frame["ts"] - frame["ts"].shift() > gap)
    grouped = frame.groupby([frame["k"], begins.cumsum()], sort=False)
    sessions = grouped.agg(window_start=("ts", "min"), window_end=("ts", "max"), n=("v", "size"), total=("v", "sum"))
    return sessions.reset_index(level=0).assign(window_end=sessions["window_end"].to_numpy() + gap)


def _updating(frames: Frames) -> pd.DataFrame:
    return frames["a"].groupby("k", as_index=False).agg(n=("v", "size"), total=("v", "sum"), mean=("x", "mean"))


def _interval(frames: Frames) -> pd.DataFrame:
    both = frames["a"].merge(frames["b"], on="k", suffixes=("", "_right"))
    apart = both["ts"] - both["ts_right"]
    return both[(apart >= pd.Timedelta(0)) & (apart <= pd.Timedelta("1min"))]


def _window_join(frames: Frames) -> pd.DataFrame:
    left, right = _minutes(frames["a"]), _minutes(frames["b"])
    return left.merge(right, on=["k", "window_start", "window_end"], suffixes=("", "_right"))


def _updating_join(frames: Frames) -> pd.DataFrame:
    return frames["a"].merge(frames["b"], on="k", suffixes=("", "_right"))


def _as_of(frames: Frames) -> pd.DataFrame:
    left, right = frames["a"].sort_values("ts"), frames["b"].sort_values(["ts", "v", "x"])
    right = right.drop_duplicates(["k", "ts"], keep="last")
    return pd.merge_asof(left, right, on="ts", by="k", suffixes=("", "_right"))


def _first(frames: Frames) -> pd.DataFrame:
    return frames["a"].drop_duplicates("k")


def _top(frames: Frames) -> pd.DataFrame:
    frame = _minutes(frames["a"]).sort_values(["v", "x", "ts"], ascending=[False, True, True])
    frame["place"] = frame.groupby([frame["k"] % 1000, "window_start"]).cumcount() + 1
    return frame[frame["place"] <= 3]  # noqa: PLR2004 - the n of the case


def _numbered(frames: Frames) -> pd.DataFrame:
    frame = _minutes(frames["a"]).sort_values(["v", "x", "ts"])
    return frame.assign(place=frame.groupby(["k", "window_start"]).cumcount() + 1)


CASES = (
    OperatorCase(
        "tumbling window",
        lambda s: s["a"].group_by("k", tumbling("1 minute")).agg(n=f.count(), total=f.sum("v"), most=f.max("x")),
        "select k, minute(ts) as w, w + interval 1 minute, count(*), sum(v)::bigint, max(x) from a group by all",
        _tumbling,
    ),
    OperatorCase(
        "sliding window",
        lambda s: s["a"].group_by("k", sliding("2 minutes", "1 minute")).agg(n=f.count(), total=f.sum("v")),
        "select k, window_start, window_start + interval 2 minute, count(*), sum(v)::bigint from "
        "(select k, v, unnest([minute(ts), minute(ts) - interval 1 minute]) as window_start from a) group by all",
        _sliding,
    ),
    OperatorCase(
        "session window",
        lambda s: s["a"].group_by("k", session("1 minute")).agg(n=f.count(), total=f.sum("v")),
        "select k, min(ts), max(ts) + interval 1 minute, count(*), sum(v)::bigint from "
        "(select *, sum(begins) over (partition by k order by ts) as number from "
        "(select *, coalesce((ts - lag(ts) over (partition by k order by ts) > interval 1 minute)::int, 0) as begins "
        "from a)) group by k, number",
        _session,
    ),
    OperatorCase(
        "updating aggregate",
        lambda s: s["a"].key_by("k").agg(n=f.count(), total=f.sum("v"), mean=f.mean("x")),
        "select k, count(*), sum(v)::bigint, avg(x) from a group by k",
        _updating,
    ),
    OperatorCase(
        "interval join",
        lambda s: s["a"].join(s["b"], "k", within=between("-1 minute", "0 s")).select(*PAIRED),
        "select a.k, a.v, a.x, b.v, b.x from a join b on a.k = b.k and a.ts between b.ts and b.ts + interval 1 minute",
        _interval,
        ("a", "b"),
    ),
    OperatorCase(
        "window join",
        lambda s: s["a"].join(s["b"], "k", window=tumbling("1 minute")).select(*PAIRED),
        "select a.k, a.v, a.x, b.v, b.x from a join b on a.k = b.k and minute(a.ts) = minute(b.ts)",
        _window_join,
        ("a", "b"),
    ),
    OperatorCase(
        "updating join",
        lambda s: s["a"].join(s["b"], "k").select(*PAIRED),
        "select a.k, a.v, a.x, b.v, b.x from a join b on a.k = b.k",
        _updating_join,
        ("a", "b"),
    ),
    OperatorCase(
        "as-of join",
        lambda s: s["a"].join(s["b"], "k", as_of=as_of(), how="left").select(*PAIRED),
        "select a.k, a.v, a.x, b.v, b.x from a asof left join "
        "(select k, ts, max((v, x)) as m, m[1] as v, m[2] as x from b group by k, ts) b on a.k = b.k and a.ts >= b.ts",
        _as_of,
        ("a", "b"),
    ),
    OperatorCase(
        "deduplicate",
        lambda s: s["a"].deduplicate("k").select("k"),
        "select distinct k from a",
        _first,
    ),
    OperatorCase(
        "top 3 by window",
        lambda s: (
            s["a"]
            .group_by("k % 1000 as g", tumbling("1 minute"))
            .top(3, "v desc, x, ts", number="place")
            .select("g", "v", "place")
        ),
        "select g, v, place from (select k % 1000 as g, v, row_number() over "
        "(partition by k % 1000, minute(ts) order by v desc, x, ts) as place from a) where place <= 3",
        _top,
    ),
    OperatorCase(
        "row_number at close",
        lambda s: (
            s["a"]
            .group_by("k", tumbling("1 minute"))
            .over(["v", "x", "ts"], place=row_number())
            .select("k", "v", "x", "place")
        ),
        "select k, v, x, row_number() over (partition by k, minute(ts) order by v, x, ts) from a",
        _numbered,
    ),
)
