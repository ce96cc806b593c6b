"""Mistakes in a flow are found at the line that has them, and each says what to write."""

import copy
import pickle
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import statebed as sb
from statebed import testing
from statebed.errors import InputError
from statebed.expressions import bind
from statebed.flow import Flow, Stream
from statebed.flow.spark_names import HINTS, WINDOWS
from statebed.flow.stream import united

ROWS = "k string, c bigint, x double, ts timestamp"


def rows(name: str = "rows", flow: Flow | None = None) -> Stream:
    return (flow or Flow("shop")).source(name, ROWS, watermark=("ts", "1 minute"))


@pytest.mark.parametrize("condition", ["c", "x + 1", "k", "ts", "'true'"])
def test_a_condition_that_is_no_boolean_is_found_where_it_stands(condition: str) -> None:
    with pytest.raises(InputError, match="must be a boolean") as caught:
        rows().where(condition)
    assert condition in str(caught.value)


def test_conditions_that_are_boolean_or_null_are_taken() -> None:
    for condition in ("c > 1", "null", "true", "k is null"):
        rows().where(condition)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Flow("shop").source("rows", "k string, _Weight bigint, ts timestamp", watermark=("ts", "0s")),
        lambda: rows().select("k", "c as _weight"),
        lambda: rows().with_columns(_weight="c"),
        lambda: rows().transform(lambda batch: batch, schema="_weight bigint"),
        lambda: rows().key_by("k", name="op").agg(_weight=sb.count()),
        lambda: rows().group_by("c as _weight", sb.tumbling("1 minute"), name="op").agg(n=sb.count()),
    ],
)
def test_a_column_that_would_be_taken_for_weights_is_refused(make: Any) -> None:
    with pytest.raises(InputError, match=r"(?i)'_weight' is reserved\n.*\n.*rename"):
        make()


# ---- unions ---------------------------------------------------------------------------------------------------


def test_a_union_takes_streams_that_differ_in_nullability_alone() -> None:
    flow = Flow("shop")
    counts = rows(flow=flow).group_by("k", sb.tumbling("1 minute"), name="counts").agg(n=sb.count())
    others = flow.source("others", "k string, window_start timestamp, window_end timestamp, n bigint, ts timestamp")
    both = counts.union(others.select("k", "window_start", "window_end", "n")).named("both")
    assert both.output.columns.field("n").nullable
    both.select("k", "n * 2 as n").named("twice")
    with testing.run(flow) as t:
        t.feed("others", [{"k": "b", "window_start": None, "window_end": None, "n": None, "ts": 0}])
        t.feed("rows", [{"k": "a", "c": 1, "x": 1.0, "ts": 0}])
        t.watermark(10**9, source="rows")
        assert {(row["k"], row["n"]) for row in t.output("twice")} == {("a", 2), ("b", None)}


def test_nested_columns_of_a_union_may_differ_in_nullability_too() -> None:
    strict = pa.schema(
        [pa.field("s", pa.struct([pa.field("f", pa.list_(pa.field("item", pa.int64(), False)), False)]))]
    )
    loose = pa.schema([pa.field("s", pa.struct([pa.field("f", pa.list_(pa.int64()))]))])
    assert united([strict, loose]) == united([loose, strict]) == loose
    assert united([strict, strict]) == strict


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("k string, c int, x double, ts timestamp", "'c' is int64 and int32"),
        ("k string, ts timestamp", "the same columns, got k, c, x, ts and k, ts"),
    ],
)
def test_a_union_of_other_columns_says_which(columns: str, words: str) -> None:
    flow = Flow("shop")
    other = flow.source("other", columns)
    with pytest.raises(InputError, match=re.escape(words)):
        rows(flow=flow).union(other)


# ---- names of Spark -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "name", "ours"),
    [
        (rows, "groupBy", "group_by"),
        (rows, "withColumn", "with_columns"),
        (rows, "withWatermark", "watermark="),
        (rows, "writeStream", "write("),
        (rows, "filter", "where("),
        (rows, "dropDuplicates", "deduplicate("),
        (lambda: rows().key_by("k"), "count", "sb.count()"),
        (lambda: rows().group_by("k", sb.tumbling("1 minute")), "avg", "sb.mean"),
        (lambda: Flow("shop"), "readStream", "source("),
    ],
)
def test_a_name_of_sparks_is_answered_with_ours(make: Any, name: str, ours: str) -> None:
    made = make()
    with pytest.raises(AttributeError, match=re.escape(ours)) as caught:
        getattr(made, name)
    assert caught.value.name == name
    assert not hasattr(made, name)


def test_other_unknown_attributes_are_as_usual() -> None:
    stream = rows()
    with pytest.raises(AttributeError, match=r"'Stream' object has no attribute 'colums'$"):
        stream.colums  # type: ignore[attr-defined]  # noqa: B018
    assert not hasattr(stream, "__array__")
    assert copy.copy(stream) == stream
    assert pickle.loads(pickle.dumps(Flow("shop"))).name == "shop"  # noqa: S301 - our own


def test_names_of_other_engines_are_answered_with_ours_and_ours_exist() -> None:
    with pytest.raises(AttributeError, match=r"use sb\.mean"):
        sb.avg  # noqa: B018
    assert not hasattr(sb, "stddev")
    for ours in sb._OTHER_NAMES.values():
        for name in re.findall(r"[a-z_]+", ours.replace("sb.", "").replace(" or ", " ")):
            assert name in sb.__all__


@pytest.mark.parametrize("window", [sb.tumbling("1 minute"), sb.sliding("1 minute", "10 s"), sb.session("1 minute")])
def test_a_window_where_none_can_stand_is_sent_to_group_by(window: Any) -> None:
    with pytest.raises(InputError, match="a window is not an aggregate") as caught:
        rows().key_by("k").agg(n=sb.count(), window=window)
    assert "group_by" in caught.value.fix
    for name in sorted(WINDOWS):
        with pytest.raises(AttributeError, match=r"pass the window to group_by"):
            getattr(rows().key_by("k"), name)


def untyped(value: Any) -> Any:
    """Return a value that may be called in ways that a type checker refuses, as users do."""
    return value


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: untyped(rows()).key_by("k").top("3", "c"),
        lambda: untyped(rows()).key_by("k").top(1.5, "c"),
        lambda: untyped(rows()).key_by("k").top(3, None),
        lambda: untyped(rows()).group_by("k", sb.tumbling("1 s")).top("3", "c"),
        lambda: untyped(sb).percentile("c", "0.5"),
        lambda: untyped(rows()).join(None, on="k"),
        lambda: untyped(rows()).union(None),
        lambda: sb.sliding("1 day", "1 millisecond"),
        lambda: sb.cumulative("1 day", "100 us"),
        lambda: Flow("shop").source("rows", ROWS, watermark=("ts", "-1 hour")),
    ],
)
def test_a_wrong_argument_is_refused_at_once_with_what_to_write(mistake: Any) -> None:
    with pytest.raises(InputError) as caught:
        mistake()
    assert caught.value.fix


def test_an_event_time_in_the_farthest_past_does_not_stop_a_job() -> None:
    flow = Flow("shop")
    source = flow.source("rows", "k string, ts timestamp", watermark=("ts", "10 seconds"))
    source.key_by("k", name="totals").agg(n=sb.count(), ttl="30 days")
    source.group_by("k", sb.session("1 minute"), name="visits").agg(n=sb.count())

    def at(micros: int) -> pa.Table:
        return pa.table({"k": ["a"], "ts": pa.array([micros]).cast(pa.timestamp("us", tz="UTC"))})

    with testing.run(flow) as run:
        run.feed("rows", at(-(1 << 63)))
        run.feed("rows", at(10**15))
        run.crash()
        run.feed("rows", at(10**15 + 10**9))
        assert run.changes("visits").num_rows == 1, "the session of the first row has closed"


def test_every_hint_names_something_that_exists() -> None:
    """Covers the hints about Spark's names, and all texts of the package."""
    sources = [path.read_text(encoding="utf-8") for path in Path(sb.__file__).parent.rglob("*.py")]
    named = {name for text in [*sources, *HINTS.values()] for name in re.findall(r"\bsb\.([A-Za-z_]+)", text)}
    assert named <= set(sb.__all__) | set(dir(sb)), named - set(sb.__all__)
    methods = {name for hint in HINTS.values() for name in re.findall(r"\b([a-z_]+)\(", hint)}
    here = {
        name
        for kind in (Stream, type(rows().key_by("k")), type(rows().group_by(sb.session("1 s"))))
        for name in dir(kind)
    }
    assert methods <= here | {"write", "start", "source", "await_termination", "explain", "repr", "function"} | set(
        sb.__all__
    )


@pytest.mark.parametrize("function", ["avg", "mean", "stddev", "variance", "count", "collect_list", "every"])
def test_an_aggregate_in_an_expression_is_told_by_a_name_that_exists(function: str) -> None:
    with pytest.raises(InputError) as caught:
        bind(f"{function}(c)", pa.schema({"c": pa.int64()}))
    (name,) = re.findall(r"use sb\.([a-z_]+)", caught.value.fix)
    assert name in sb.__all__


# ---- what streams look like -----------------------------------------------------------------------------------


def test_the_repr_of_a_stream_is_one_line() -> None:
    stream = rows()
    assert repr(stream) == "<Stream of rows: k string, c int64, x double, ts timestamp[us, tz=UTC]>"
    grouped = stream.group_by("k", sb.tumbling("1 minute"))
    assert repr(grouped).startswith("<GroupedStream by k, tumbling window of 1 minute, of <Stream of rows")
    totals = stream.key_by("k", name="totals").agg(n=sb.count())
    assert repr(totals) == "<Stream of totals: k string, n int64, changelog>"
    wide = stream.select(*(f"c + {number} as a_rather_long_name_{number}" for number in range(50)))
    for one in (grouped, totals, wide, stream.key_by("k"), stream.where("c > 1\n and c < 3")):
        assert "\n" not in repr(one)
        assert len(repr(one)) <= 200


@pytest.mark.parametrize("watermark", ["ts", ("ts",), ("ts", "1 minute", 3), 5, ["ts"]])
def test_a_watermark_without_its_delay_is_explained(watermark: Any) -> None:
    with pytest.raises(InputError) as caught:
        Flow("shop").source("rows", ROWS, watermark=watermark)
    assert "how late its rows may be" in str(caught.value)
    assert "watermark=('ts', '10 minutes')" in caught.value.fix


def test_an_event_time_that_is_no_timestamp_names_one_that_is() -> None:
    with pytest.raises(InputError, match=r"watermark=\('ts', '10 minutes'\)"):
        Flow("shop").source("rows", ROWS, watermark=("c", "1 minute"))


# ---- operators that have no name ------------------------------------------------------------------------------

NAMELESS: dict[str, tuple[Any, str]] = {
    "no window": (lambda: rows().group_by("k"), "group_by()"),
    "two windows": (lambda: rows().group_by(sb.tumbling("1 s"), sb.session("1 s")), "group_by()"),
    "no event time": (
        lambda: Flow("shop").source("rows", ROWS).group_by("k", sb.tumbling("1 minute")),
        "group_by()",
    ),
    "an unknown key": (lambda: rows().key_by("nothing"), "key_by()"),
    "an unknown input": (lambda: rows().group_by(sb.tumbling("1 s")).agg(n=sb.sum("nothing")), "group_by()"),
    "no aggregate": (lambda: rows().key_by("k").agg(), "key_by()"),
    "a lateness": (
        lambda: rows().group_by("k", sb.tumbling("1 minute")).agg(n=sb.count(), allowed_lateness="-1 s"),
        "group_by(k, tumbling window of 1 minute).agg",
    ),
    "an emit": (lambda: rows().group_by("k", sb.tumbling("1 minute")).agg(n=sb.count(), emit="now"), "group_by()"),
    "a session of rows": (lambda: rows().group_by("k", sb.session("1 s")).top(1, "c"), "group_by()"),
    "an order": (
        lambda: rows().group_by("k", sb.tumbling("1 minute")).top(1, "nothing"),
        "group_by(k, tumbling window of 1 minute).top",
    ),
    "n": (lambda: rows().key_by("k").top(0, "c"), "key_by(k).top"),
    "a numbering": (lambda: rows().key_by("k").top(1, "c", numbering="x"), "key_by()"),
    "what to keep": (lambda: rows().deduplicate("k", keep="any"), "deduplicate()"),
    "a join without times": (lambda: joined(sb.Flow("shop")), "join()"),
    "a kind of join": (lambda: joined(timed=True, how="outer"), "join()"),
    "a column of a join": (lambda: joined(timed=True, on="nothing"), "join()"),
    "columns of a join": (lambda: joined(timed=True, suffixes=("", "")), "join(on=k)"),
    "a condition of a join": (lambda: joined(timed=True, condition="c"), "join(on=k)"),
    "an as-of join": (lambda: joined(timed=True, within=None, as_of=sb.as_of(), how="full"), "join(on=k)"),
    "a time to live": (
        lambda: Flow("shop").source("rows", ROWS).key_by("k").agg(n=sb.count(), ttl="1 day"),
        "key_by(k).agg",
    ),
}


def joined(flow: Flow | None = None, *, timed: bool = False, on: str = "k", **terms: Any) -> Stream:
    flow = flow or Flow("shop")
    watermark = ("ts", "1 minute") if timed else None
    left, right = (flow.source(name, ROWS, watermark=watermark) for name in ("one", "two"))
    return left.join(right, on=on, **({"within": sb.between("0s", "1 minute")} | terms))


@pytest.mark.parametrize("mistake", NAMELESS, ids=str)
def test_an_error_of_an_operator_without_a_name_says_what_was_written(mistake: str) -> None:
    make, label = NAMELESS[mistake]
    with pytest.raises(InputError) as caught:
        make()
    assert label in str(caught.value)
    for internal in ("operator None", "without name", "'window'", "'join'", "'top'", "'aggregate'", "_us", " us "):
        assert internal not in str(caught.value)


def test_errors_while_running_name_an_operator_by_what_was_written() -> None:
    flow = Flow("shop")
    rows(flow=flow).key_by("k").agg(n=sb.sum("c div (c - c)"))
    with pytest.raises(sb.StatebedError) as caught, testing.run(flow) as t:
        t.feed("rows", [{"k": "a", "c": 1, "x": 1.0, "ts": 0}])
    assert "aggregate_" not in str(caught.value)
