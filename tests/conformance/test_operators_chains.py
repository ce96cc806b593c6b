"""Chains of operators over random streams equal DuckDB's batch answer: no operator calls another's results late."""

from conformance.answers import assert_late, assert_same, select, windows
from conformance.streams import LEFT, RIGHT, SHORT_AND_LONG, Played, Script, for_each, play, source
from conformance.test_operators_windows import newest_end

from statebed import testing
from statebed.aggregates import functions as f
from statebed.flow import Flow, between
from statebed.operators.window_definition import session, sliding, tumbling

SMALL, LARGE, OVERLAPPING = tumbling("5 us"), tumbling("20 us"), sliding("10 us", "4 us")
PER_WINDOW = f"""
    first as (select k, window_start, window_end, count(*) as n, sum(v) as total, window_end - 1 as ts, null as seen
              from {windows(SMALL, "fed")} group by k, window_start, window_end)"""


def nothing_is_late(played: Played, *operators: str) -> bool:
    return all(played.run.counts[operator, "rows_late"] == 0 for operator in operators)


@SHORT_AND_LONG
def test_p6_windows_and_sessions_of_windows_equal_duckdb(effort: int) -> None:
    flow = Flow("conformance")
    first = source(flow).group_by("k", SMALL, name="first").agg(n=f.count(), total=f.sum("v"))
    first.group_by(LARGE, name="second").agg(keys=f.count(), n=f.sum("n"), most=f.max("total"))
    first.group_by("k", OVERLAPPING, name="sliding").agg(n=f.sum("n"), latest=f.last("n"))
    first.group_by("k", session("6 us"), name="busy").agg(windows=f.count(), n=f.sum("n"))
    wide = f"""
        with {PER_WINDOW}
        select window_start, window_end, count(*) as keys, sum(n) as n, max(total) as most
        from {windows(LARGE, "(select k, n, total, ts, seen from first)")} group by window_start, window_end"""
    over = f"""
        with {PER_WINDOW}
        select k, window_start, window_end, sum(n) as n, first(n order by ts desc, n) as latest
        from {windows(OVERLAPPING, "(select k, n, total, ts, seen from first)")} group by k, window_start, window_end"""
    busy = f"""
        with {PER_WINDOW},
        steps as (select *, ts - lag(ts) over (partition by k order by ts) as step from first),
        numbered as (select *, sum((step is null or step > 6)::int) over (partition by k order by ts) as id from steps)
        select k, min(ts) as window_start, max(ts) + 6 as window_end, count(*) as windows, sum(n) as n
        from numbered group by k, id"""

    def check(script: Script) -> None:
        with play(flow, script) as played:
            fed = played.rows()
            for name, query in {"second": wide, "sliding": over, "busy": busy}.items():
                assert_same(played.run.table(name), select(query, fed=fed))
                assert played.run.state_rows(name) == 0
            assert_late(played, "first", f"ts is null or {newest_end(SMALL)} <= seen")
            assert nothing_is_late(played, "second", "sliding", "busy")

    for_each(check, "windows", examples=2 * effort)


@SHORT_AND_LONG
def test_p6_aggregates_and_windows_of_early_windows_equal_duckdb(effort: int) -> None:
    """Early results are taken back as they change, and whatever is made of them follows."""
    flow = Flow("conformance")
    early = source(flow).group_by("k", SMALL, name="first").agg(n=f.count(), total=f.sum("v"), emit="early")
    early.key_by("k", name="running").agg(windows=f.count(), n=f.sum("n"), most=f.max("total"), median=f.median("n"))
    early.group_by(LARGE, name="second").agg(keys=f.count(), n=f.sum("n"), most=f.max("total"))
    early.key_by("n", name="top").top(2, ["total desc", "k", "window_start"])
    running = f"""
        with {PER_WINDOW}
        select k, count(*) as windows, sum(n) as n, max(total) as most, median(n) as median from first group by k"""
    second = f"""
        with {PER_WINDOW}
        select window_start, window_end, count(*) as keys, sum(n) as n, max(total) as most
        from {windows(LARGE, "(select k, n, total, ts, seen from first)")} group by window_start, window_end"""
    top = f"""
        with {PER_WINDOW}
        select k, window_start, window_end, n, total from first
        qualify row_number() over (partition by n order by total desc nulls last, k nulls first, window_start) <= 2"""

    def check(script: Script) -> None:
        with play(flow, script) as played:
            fed = played.rows()
            for name, query in {"running": running, "second": second, "top": top}.items():
                assert_same(played.run.table(name), select(query, fed=fed))
            assert nothing_is_late(played, "running", "second", "top")
            assert played.run.counts["running", "unknown_retractions"] == 0

    for_each(check, "early", examples=2 * effort)


@SHORT_AND_LONG
def test_p6_joins_of_running_aggregates_equal_duckdb(effort: int) -> None:
    flow = Flow("conformance")
    sums = source(flow, LEFT).key_by("k", name="sums").agg(n=f.count(), total=f.sum("v"))
    lows = source(flow, RIGHT).key_by("k", name="lows").agg(n=f.count(), least=f.min("t"))
    joined = sums.join(lows, "k", how="full", condition="n >= n_right", name="joined")
    joined.key_by("least", name="out").agg(keys=f.count("k"), total=f.sum("total"))
    pairs = """
        with l as (select k, count(*) as n, sum(v) as total from lefts group by k),
        r as (select k, count(*) as n, min(t) as least from rights group by k),
        joined as (
            select coalesce(l.k, r.k) as k, l.n, l.total, r.n as n_right, r.least
            from l full join r on l.k = r.k and l.n >= r.n)"""
    final = f"{pairs} select least, count(k) as keys, sum(total) as total from joined group by least"

    def check(script: Script) -> None:
        with play(flow, script) as played:
            tables = {"lefts": played.rows(LEFT), "rights": played.rows(RIGHT)}
            assert_same(played.run.table("joined"), select(f"{pairs} select * from joined", **tables))
            assert_same(played.run.table("out"), select(final, **tables))
            assert nothing_is_late(played, "sums", "lows", "out")
            assert played.run.counts["out", "unknown_retractions"] == 0

    for_each(check, "joins", examples=2 * effort, sources=(LEFT, RIGHT))


@SHORT_AND_LONG
def test_p6_windows_of_joins_and_joins_of_windows_equal_duckdb(effort: int) -> None:
    def check(script: Script) -> None:
        how = script.pick(["inner", "left", "full", "semi", "anti"])
        flow = Flow("conformance")
        left, right = source(flow, LEFT), source(flow, RIGHT)
        pairs = left.join(right, "k", within=between("-9 us", "4 us"), how=how, name="pairs")
        pairs.group_by("k", LARGE, name="out").agg(n=f.count(), total=f.sum("v"))
        counts = [
            one.group_by("k", SMALL, name=f"per_window_{name}").agg(n=f.count())
            for name, one in ((LEFT, left), (RIGHT, right))
        ]
        counts[0].join(counts[1], "k", within=between("-5 us", "0 us"), name="beside")
        with play(flow, script) as played:
            tables = {"lefts": played.rows(LEFT), "rights": played.rows(RIGHT)}
            assert_same(played.run.table("out"), select(windows_of_pairs(how), **tables))
            alone = {f"{side}s": played.rows(side, alone=True) for side in (LEFT, RIGHT)}
            assert_same(played.run.table("beside"), select(BESIDE, **alone))
            assert nothing_is_late(played, "out", "beside")
            assert played.run.state_rows("out") == played.run.state_rows("pairs") == 0

    for_each(check, "windows of joins", examples=3 * effort, sources=(LEFT, RIGHT))


@SHORT_AND_LONG
def test_p6_windows_on_a_column_of_one_side_of_a_join_equal_duckdb_and_none_of_its_rows_is_late(effort: int) -> None:
    """The event time of a pair is the later of two; a window on the time of one side lags behind by the interval."""

    def check(script: Script) -> None:
        how = script.pick(["inner", "left", "right", "full", "semi", "anti"])
        lower, upper = script.pick([(-9, 4), (0, 12), (2, 5), (-9, -3), (0, 0)])
        flow = Flow("conformance")
        left, right = source(flow, LEFT), source(flow, RIGHT)
        pairs = left.join(right, "k", within=between(f"{lower} us", f"{upper} us"), how=how, name="pairs")
        columns = {"left": "ts", "right": "ts_right"} if how not in {"semi", "anti"} else {"left": "ts"}
        for side, on in columns.items():
            pairs.group_by("k", tumbling("20 us", on=on), name=f"by_{side}").agg(n=f.count(), total=f.sum("v"))
            pairs.group_by("k", session("6 us", on=on), name=f"busy_{side}").agg(n=f.count())
            pairs.group_by("k", sliding("10 us", "4 us", on=on), name=f"best_{side}").top(1, "v desc", number="place")
        with play(flow, script) as played:
            tables = {"lefts": played.rows(LEFT), "rights": played.rows(RIGHT)}
            for side in columns:
                joined = pairs_by(how, side, lower, upper)
                counted = f"""{joined} select k, window_start, window_end, count(*) as n, sum(v) as total
                    from {windows(LARGE, "pairs")} group by k, window_start, window_end"""
                assert_same(played.run.table(f"by_{side}"), select(counted, **tables))
                highest = f"""{joined} select k, window_start, window_end, max(v) as v
                    from {windows(OVERLAPPING, "pairs")} group by k, window_start, window_end"""
                best = played.run.table(f"best_{side}").select(["k", "window_start", "window_end", "v"])
                assert_same(best, select(highest, **tables))
                _, ((nulls,),) = select(f"{joined} select count(*) from pairs where ts is null", **tables)
                for operator in (f"by_{side}", f"busy_{side}", f"best_{side}"):
                    assert played.run.counts[operator, "rows_late"] == nulls, "rows without the time alone are late"
                    assert played.run.state_rows(operator) == 0

    for_each(check, "windows on columns", examples=6 * effort, sources=(LEFT, RIGHT))


def pairs_by(how: str, side: str, lower: int, upper: int) -> str:
    on = f"l.k = r.k and r.ts - l.ts between {lower} and {upper}"
    time = "l.ts" if side == "left" else "r.ts"
    pairs = f"select coalesce(l.k, r.k) as k, l.v, {time} as ts, null as seen from l {how} join r on {on}"
    if how in {"semi", "anti"}:
        no = "not" if how == "anti" else ""
        pairs = f"select l.k, l.v, l.ts, null as seen from l where {no} exists (from r where {on})"
    return f"with {ADMITTED}, pairs as ({pairs})"


ADMITTED = """
    l as (select * from lefts where ts is not null and (seen is null or ts > seen)),
    r as (select * from rights where ts is not null and (seen is null or ts > seen))"""


def windows_of_pairs(how: str) -> str:
    on = "l.k = r.k and l.ts - r.ts between -4 and 9"
    pairs = f"select coalesce(l.k, r.k) as k, l.v, greatest(l.ts, r.ts) as ts, null as seen from l {how} join r on {on}"
    if how in {"semi", "anti"}:
        no = "not" if how == "anti" else ""
        pairs = f"select l.k, l.v, l.ts, null as seen from l where {no} exists (from r where {on})"
    return f"""
        with {ADMITTED}, pairs as ({pairs})
        select k, window_start, window_end, count(*) as n, sum(v) as total
        from {windows(LARGE, "pairs")} group by k, window_start, window_end"""


BESIDE = f"""
    with l as (select k, window_start, window_end, count(*) as n from {windows(SMALL, "lefts")} group by all),
    r as (select k, window_start, window_end, count(*) as n from {windows(SMALL, "rights")} group by all)
    select l.k, l.window_start, l.window_end, l.n, r.window_start as window_start_right,
        r.window_end as window_end_right, r.n as n_right
    from l join r on l.k = r.k and l.window_end - r.window_end between 0 and 5"""


def test_a_window_of_windows_closes_with_the_last_of_them_as_in_spark() -> None:
    flow = Flow("conformance")
    stream = flow.source("rows", "v bigint, ts timestamp", watermark=("ts", "0 us"))
    inner = stream.group_by(tumbling("5 us"), name="inner").agg(n=f.count())
    inner.group_by(tumbling("10 us"), name="outer").agg(n=f.sum("n"))
    # Ends of these are not multiples of five: one may end right after a watermark.
    odd = stream.group_by(tumbling("5 us", offset="1 us"), name="odd").agg(n=f.count())
    odd.group_by(tumbling("10 us"), name="around").agg(n=f.sum("n"))
    assert [flow.graph.operators["inner"].output_watermark(mark) for mark in (8, 9, 10)] == [8, 8, 10]
    assert [flow.graph.operators["odd"].output_watermark(mark) for mark in (9, 10, 11)] == [9, 9, 11]
    with testing.run(flow) as t:
        t.feed("rows", [{"v": 1, "ts": time} for time in (1, 9)])
        t.watermark(10)
        assert [row["n"] for row in t.output("outer")] == [2]
        assert t.output("around") == [], "[6, 11) is open, and its result has the time 10"
        t.watermark(21)
        assert sorted(row["n"] for row in t.output("around")) == [1, 1]
        assert t.counts["around", "rows_late"] == t.counts["outer", "rows_late"] == 0
