"""Rows made of the elements of lists and maps: explode as a method and in select, `*`, and windows as values."""

from typing import Any

import pyarrow as pa
import pytest

import statebed as sb
from statebed.errors import InputError
from statebed.flow import Stream

COLUMNS = (
    "customer string, items array<string>, tags map<string, int>, parts array<struct<a: int, b: string>>, ts timestamp"
)
ROWS: list[dict[str, Any]] = [
    {"customer": "ann", "items": ["x", "y", None], "tags": [("p", 1)], "parts": [{"a": 1, "b": "q"}, None]},
    {"customer": "bob", "items": [], "tags": None, "parts": None},
    {"customer": "cid", "items": ["x"], "tags": [("p", 2), ("r", None)], "parts": []},
]


def orders() -> tuple[sb.Flow, Stream]:
    flow = sb.Flow("orders")
    return flow, flow.source("orders", COLUMNS, watermark=("ts", "1 minute"))


def rows_of(stream: Stream, flow: sb.Flow, *columns: str) -> list[tuple[Any, ...]]:
    stream.named("shown")
    with sb.testing.run(flow) as test:
        test.feed("orders", [{**row, "ts": "2026-01-01T00:00:00Z"} for row in ROWS])
        return [tuple(row[name] for name in columns) for row in test.output("shown")]


@pytest.mark.parametrize(
    ("explode", "columns", "expected"),
    [
        (
            lambda s: s.explode("items"),
            ["customer", "items"],
            [("ann", "x"), ("ann", "y"), ("ann", None), ("cid", "x")],
        ),
        (
            lambda s: s.explode("items", "item", outer=True, position="n"),
            ["customer", "n", "item"],
            [("ann", 0, "x"), ("ann", 1, "y"), ("ann", 2, None), ("bob", None, None), ("cid", 0, "x")],
        ),
        (
            lambda s: s.explode("tags"),
            ["customer", "key", "value"],
            [("ann", "p", 1), ("cid", "p", 2), ("cid", "r", None)],
        ),
        (lambda s: s.explode("tags", "t", "n"), ["t", "n"], [("p", 1), ("p", 2), ("r", None)]),
        (lambda s: s.explode("parts", inline=True), ["customer", "a", "b"], [("ann", 1, "q"), ("ann", None, None)]),
        (
            lambda s: s.explode("filter(items, x -> x > 'w')", "item"),
            ["customer", "item"],
            [("ann", "x"), ("ann", "y"), ("cid", "x")],
        ),
        (
            lambda s: s.select("upper(customer) as who", "explode(items) as item"),
            ["who", "item"],
            [("ANN", "x"), ("ANN", "y"), ("ANN", None), ("CID", "x")],
        ),
        (lambda s: s.select("unnest(items)"), ["col"], [("x",), ("y",), (None,), ("x",)]),
        (
            lambda s: s.select("customer", "posexplode_outer(tags) as (n, k, v)"),
            ["customer", "n", "k", "v"],
            [("ann", 0, "p", 1), ("bob", None, None, None), ("cid", 0, "p", 2), ("cid", 1, "r", None)],
        ),
        (
            lambda s: s.select("inline_outer(parts)", "customer"),
            ["a", "b", "customer"],
            [(1, "q", "ann"), (None, None, "ann"), (None, None, "bob"), (None, None, "cid")],
        ),
    ],
)
def test_each_element_is_a_row(explode: Any, columns: list[str], expected: list[Any]) -> None:
    flow, stream = orders()
    assert rows_of(explode(stream), flow, *columns) == expected


def test_a_star_stands_for_all_columns() -> None:
    _, stream = orders()
    assert stream.select("*", "customer as again").columns == [*stream.columns, "again"]
    assert stream.select("*", "explode(items) as item").columns == [*stream.columns, "item"]


def test_the_exploded_column_stays_at_its_place_with_its_new_type() -> None:
    _, stream = orders()
    exploded = stream.explode("items")
    assert exploded.columns == stream.columns
    assert exploded.output.columns.field("items").type == pa.string()


@pytest.mark.parametrize(
    ("explode", "said"),
    [
        (lambda s: s.explode("customer"), "explode needs a list or a map, but 'customer' has the type string"),
        (lambda s: s.explode("items", inline=True), "inline needs a list of structs"),
        (lambda s: s.explode("parts", inline=True, position="n"), "inline= and position= cannot be combined"),
        (lambda s: s.explode("tags", "one"), "exploding 'tags' gives the columns key, value, but the names are one"),
        (lambda s: s.select("explode(items)", "explode(tags)"), "a select can explode one column, got 2"),
        (lambda s: s.select("explode(items) + 1"), "explode makes several rows and cannot be part of an expression"),
        (lambda s: s.where("explode(items) = 'x'"), "explode makes several rows and cannot be part of an expression"),
    ],
)
def test_what_cannot_be_exploded_is_refused(explode: Any, said: str) -> None:
    _, stream = orders()
    with pytest.raises(InputError) as caught:
        explode(stream)
    assert said in str(caught.value)


def test_elements_are_counted_through_crashes_and_rescaling() -> None:
    flow, stream = orders()
    totals = stream.explode("items", "item").key_by("item", name="totals").agg(n=sb.count())
    totals.select("*", "explode(sequence(1L, n)) as step").named("steps")
    with sb.testing.run(flow, parallelism=2) as test:
        for minute in range(4):
            rows = [{**row, "ts": f"2026-01-01T00:0{minute}:00Z"} for row in ROWS]
            if minute == 1:
                test.crash()
            if minute == 2:
                test.rescale(3)
            test.feed("orders", rows)
        assert {(row["item"], row["n"]) for row in test.output("totals")} == {("x", 8), ("y", 4), (None, 4)}
        # Changes of the totals take their exploded rows along.
        assert sorted(row["step"] for row in test.output("steps") if row["item"] == "x") == list(range(1, 9))


def test_a_window_is_a_value_that_can_be_a_key_and_be_compared() -> None:
    flow, stream = orders()
    stamped = stream.with_columns(w="window(ts, '10 minutes')")
    stamped.key_by("w", name="per_window").agg(n=sb.count()).named("counts")
    stamped.where(
        "w = struct(timestamp '2026-01-01 00:00:00' as start, timestamp '2026-01-01 00:10:00' as end)"
    ).select("customer", "w.end as closes").named("first")
    with sb.testing.run(flow) as test:
        for time in ("00:01", "00:09", "00:11"):
            test.feed("orders", [{**ROWS[0], "ts": f"2026-01-01T{time}:00Z"}])
        assert sorted(row["n"] for row in test.output("counts")) == [1, 2]
        assert [row["customer"] for row in test.output("first")] == ["ann", "ann"]
