"""Aggregates over what an updating aggregate gives: every group is what it would be had only the last rows come."""

import itertools
from typing import Any

import duck
import pyarrow as pa
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from statebed import testing
from statebed.aggregates import functions as sb
from statebed.errors import InputError
from statebed.flow import Flow

ROWS = st.lists(st.tuples(st.integers(0, 5), st.integers(-4, 4)), min_size=1, max_size=20)
OUTER = {
    "users": (sb.count(), "count(*)"),
    "total": (sb.sum("total"), "sum(total)::bigint"),
    "half": (sb.sum("total / 2"), "sum(total / 2)"),
    "mean": (sb.mean("total"), "avg(total)"),
    "least": (sb.min("total"), "min(total)"),
    "most": (sb.max("total"), "max(total)"),
    "who": (sb.max_by("u", "total * 10 + u"), "max_by(u, total * 10 + u)"),
    "spread": (sb.var_pop("total"), "var_pop(total)"),
    "totals": (sb.count_distinct("total"), "count(distinct total)"),
    "median": (sb.median("total"), "median(total)"),
    "set": (sb.collect_set("total"), "list_sort(list(distinct total))"),
    "large": (sb.count_if("total > 0"), "count(*) filter (total > 0)"),
    "any": (sb.bool_or("total > 3"), "bool_or(total > 3)"),
    "bits": (sb.bit_xor("total"), "bit_xor(total)"),
}


def flow() -> Flow:
    """Totals by user, and of these by parity of their size: a user moves from one group to the other all the time."""
    made = Flow("changelogs")
    rows = made.source("rows", "u bigint, n bigint")
    totals = rows.key_by("u", name="totals").agg(total=sb.sum("n"))
    parity = totals.select("u", "total", "total % 2 = 0 as even")
    outer: dict[str, Any] = {name: aggregate for name, (aggregate, _) in OUTER.items()}
    parity.key_by("even", name="outer").agg(**outer)
    return made


def expected(rows: list[tuple[int, int]]) -> list[tuple[Any, ...]]:
    columns = ", ".join(f'{sql} as "{name}"' for name, (_, sql) in OUTER.items())
    with duck.cursor() as db:
        db.register("rows", pa.table({"u": [u for u, _ in rows], "n": [n for _, n in rows]}))
        inner = "select u, sum(n)::bigint as total from rows group by u"
        query = f"select total % 2 = 0 as even, {columns} from ({inner}) group by even order by even"
        return db.sql(query).fetchall()


@settings(deadline=None, max_examples=examples(8))
@given(rows=ROWS, cuts=st.lists(st.integers(0, 20), max_size=3), data=st.data())
def test_p6_the_outer_aggregate_is_that_of_the_last_inner_rows(
    rows: list[tuple[int, int]], cuts: list[int], data: st.DataObject
) -> None:
    edges = sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})
    with testing.run(flow(), parallelism=2) as t:
        for start, end in itertools.pairwise(edges):
            t.feed("rows", [{"u": u, "n": n} for u, n in rows[start:end]])
            event = data.draw(st.sampled_from(["crash", "rescale", "go on"]))
            if event == "crash":
                t.crash()
            elif event == "rescale":
                t.rescale(3)
        found = sorted((tuple(row.values()) for row in t.output("outer")), key=lambda row: bool(row[0]))
    for mine, theirs in zip(found, expected(rows), strict=True):
        for one, other in zip(mine, theirs, strict=True):
            assert one == pytest.approx(other, rel=1e-9, abs=1e-9)


def test_an_aggregate_that_cannot_take_rows_back_is_refused_where_it_is_written() -> None:
    rows = Flow("refused").source("rows", "u bigint, n bigint")
    totals = rows.key_by("u", name="totals").agg(total=sb.sum("n"))
    with pytest.raises(InputError, match="does not support retractions") as caught:
        totals.key_by("total").agg(users=sb.approx_count_distinct("u"))
    assert "users" in caught.value.where
