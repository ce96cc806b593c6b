"""Joins over random streams equal DuckDB's batch answer over the rows that the watermark admits."""

import pytest
from conformance.answers import assert_late, assert_same, select, windows
from conformance.streams import LEFT, RIGHT, SHORT_AND_LONG, Played, Script, for_each, play, source
from effort import diagonals

from statebed.flow import Flow, Stream, as_of, between
from statebed.operators.window_definition import sliding, tumbling

KINDS = ["inner", "left", "right", "full", "semi", "anti"]
CONDITION = "v > v_right or t = t_right"
KEYS = [("k",), ("k", "d")]
VALUES = ["v", "big", "m", "t", "ts", "x"]


def both(flow: Flow) -> tuple[Stream, Stream]:
    return source(flow, LEFT), source(flow, RIGHT)


def query(how: str, keys: tuple[str, ...], *, times: str = "true", condition: str | None, more: str = "") -> str:
    """SQL over the tables l and r; keys come once, then the columns of `more`, then those of both sides."""
    values = [*(["d"] if "d" not in keys else []), *VALUES]
    met = f"({condition.replace('v_right', 'r.v').replace('t_right', 'r.t')})" if condition else "true"
    met = met.replace("v >", "l.v >").replace("t =", "l.t =")
    on = " and ".join([*(f"l.{key} = r.{key}" for key in keys), times, met])
    if how in {"semi", "anti"}:
        columns = ", ".join([*keys, *([more] if more else []), *values])
        return f"select {columns} from l where {'not ' if how == 'anti' else ''}exists (select 1 from r where {on})"
    shown = ", ".join(f"coalesce(l.{key}, r.{key}) as {key}" for key in keys)
    window = "".join(f"coalesce(l.{name}, r.{name}) as {name}, " for name in more.split(", ")) if more else ""
    sides = ", ".join([f"l.{name}" for name in values] + [f"r.{name} as {name}_right" for name in values])
    return f"select {shown}, {window} {sides} from l {how} join r on {on}"


def assert_late_of_both(played: Played, late: str) -> None:
    for side in (LEFT, RIGHT):
        assert_late(played, "out", late, source=side, side=f"late_{side}")
    counts, fed = played.run.counts, [played.rows(side).num_rows for side in (LEFT, RIGHT)]
    assert counts["out", "rows_in"] == sum(fed)
    assert counts["out", "rows_late"] == sum(
        played.run.table("out", side=f"late_{side}").num_rows for side in (LEFT, RIGHT)
    )


def kinds_and_conditions(first: int) -> pytest.MarkDecorator:
    """Run a test with every kind of join, with and without a condition."""
    pairs = diagonals(KINDS, [None, CONDITION], first=first)
    return pytest.mark.parametrize(("how", "condition"), pairs, ids={None: "plain", CONDITION: "condition"}.get)


@SHORT_AND_LONG
@kinds_and_conditions(0)
def test_p6_interval_joins_equal_duckdb(how: str, condition: str | None, effort: int) -> None:
    def check(script: Script) -> None:
        keys = script.pick(KEYS)
        lower, upper = script.pick([(-4, 9), (0, 12), (2, 5), (-9, -3)])
        flow = Flow("conformance")
        left, right = both(flow)
        within = between(f"{lower} us", f"{upper} us")
        left.join(right, keys, within=within, how=how, condition=condition, name="out")
        sql = query(how, keys, times=f"r.ts between l.ts + {lower} and l.ts + {upper}", condition=condition)
        with play(flow, script) as played:
            admitted = "ts is not null and (seen is null or ts > seen)"
            tables = f"with l as (select * from lefts where {admitted}), r as (select * from rights where {admitted})"
            expected = select(f"{tables} {sql}", lefts=played.rows(LEFT), rights=played.rows(RIGHT))
            assert_same(played.run.table("out"), expected)
            assert_late_of_both(played, "ts is null or ts <= seen")
            assert played.run.state_rows("out") == 0

    for_each(check, ("interval", how, condition), examples=effort, sources=(LEFT, RIGHT))


@SHORT_AND_LONG
@kinds_and_conditions(1)
def test_p6_window_joins_equal_duckdb(how: str, condition: str | None, effort: int) -> None:
    def check(script: Script) -> None:
        keys, window = script.pick(KEYS), script.pick([tumbling("10 us"), sliding("10 us", "4 us"), tumbling("7 us")])
        flow = Flow("conformance")
        left, right = both(flow)
        left.join(right, keys, window=window, how=how, condition=condition, name="out")
        sql = query(
            how,
            keys,
            times="l.window_start = r.window_start",
            condition=condition,
            more="window_start, window_end",
        )
        newest = f"ts - floor_mod(ts - {window.offset_us}, {window.period_us}) + {window.width_us}"
        with play(flow, script) as played:
            tables = f"with l as {windows(window, 'lefts')}, r as {windows(window, 'rights')}"
            expected = select(f"{tables} {sql}", lefts=played.rows(LEFT), rights=played.rows(RIGHT))
            assert_same(played.run.table("out"), expected)
            assert_late_of_both(played, f"ts is null or {newest} <= seen")
            assert played.run.state_rows("out") == 0

    for_each(check, ("window", how, condition), examples=effort, sources=(LEFT, RIGHT))


@SHORT_AND_LONG
@kinds_and_conditions(2)
def test_p6_joins_without_a_time_equal_duckdb_over_all_rows(how: str, condition: str | None, effort: int) -> None:
    def check(script: Script) -> None:
        keys = script.pick(KEYS)
        flow = Flow("conformance")
        left, right = both(flow)
        left.join(right, keys, how=how, condition=condition, name="out")
        with play(flow, script) as played:
            tables = {"l": played.rows(LEFT), "r": played.rows(RIGHT)}
            assert_same(played.run.table("out"), select(query(how, keys, condition=condition), **tables))
            assert_late_of_both(played, "false")

    for_each(check, ("updating", how, condition), examples=effort, sources=(LEFT, RIGHT))


@SHORT_AND_LONG
@pytest.mark.parametrize(("how", "tolerance"), diagonals(["inner", "left"], [None, 8]))
def test_p6_as_of_joins_equal_duckdb(how: str, tolerance: int | None, effort: int) -> None:
    def check(script: Script) -> None:
        keys, ends = script.pick(KEYS), script.pick([True, False])
        flow = Flow("conformance")
        left, right = both(flow)
        versions = right.with_columns(ended="coalesce(v > 5, false)") if ends else right
        terms = as_of(tolerance=None if tolerance is None else f"{tolerance} us", deleted="ended" if ends else None)
        left.join(versions, keys, as_of=terms, how=how, name="out")
        with play(flow, script) as played:
            sql = as_of_query(how, keys, tolerance, ends=ends)
            expected = select(sql, lefts=played.rows(LEFT), rights=played.rows(RIGHT))
            assert_same(played.run.table("out"), expected)
            assert_late_of_both(played, "ts is null or ts <= seen")
            assert played.run.state("out", "waiting").num_rows == played.run.state("out", "pending").num_rows == 0
            if tolerance is not None:
                assert played.run.state_rows("out") == 0

    for_each(check, (how, tolerance), examples=2 * effort, sources=(LEFT, RIGHT))


def as_of_query(how: str, keys: tuple[str, ...], tolerance: int | None, *, ends: bool) -> str:
    values = [*(["d"] if "d" not in keys else []), *VALUES]
    by = ", ".join(keys)
    order = ", ".join(f"{name} desc nulls first" for name in values)
    valid = [f"l.ts - r.ts <= {tolerance}"] if tolerance is not None else []
    valid += ["not coalesce(r.v > 5, false)"] if ends else []
    keep = " and ".join(["r.ts is not null", *valid])
    on = " and ".join([*(f"l.{key} = r.{key}" for key in keys), "l.ts >= r.ts"])
    sides = [f"l.{name}" for name in values]
    sides += [f"case when {keep} then r.{name} end as {name}_right" for name in values]
    return f"""
        with l as (select * from lefts where ts is not null and (seen is null or ts > seen)),
        r as (
            select * from rights where ts is not null and (seen is null or ts > seen)
            qualify row_number() over (partition by {by}, ts order by {order}) = 1)
        select {", ".join(f"l.{key}" for key in keys)}, {", ".join(sides)}
        from l asof left join r on {on} {f"where {keep}" if how == "inner" else ""}"""
