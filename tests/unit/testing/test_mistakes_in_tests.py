"""Mistakes in a test of a flow say what is wrong with the test."""

import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import statebed as sb
from statebed import testing
from statebed.arrays.exact_values import exact_array
from statebed.errors import InputError

TOKYO = dt.timezone(dt.timedelta(hours=9))
NOON = dt.datetime(2020, 1, 1, 12)  # noqa: DTZ001 - a local time


@pytest.fixture
def run() -> Iterator[testing.TestRun]:
    flow = sb.Flow("shop")
    rows = flow.source("rows", "k string, n timestamp_ntz, ts timestamp", watermark=("ts", "0s"))
    rows.key_by("k", name="op").agg(n=sb.count())
    rows.key_by("n").agg(rows=sb.count())
    with testing.run(flow) as running:
        yield running


MISTAKES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "unknown part": (lambda run: run.output("nothing"), r"^\[INPUT\] the flow has no part 'nothing'\n.*'op', 'rows'\]"),
    "unknown state": (lambda run: run.state("nothing", "groups"), "the flow has no part 'nothing'"),
    "unknown count": (lambda run: run.state_rows("nothing"), "the flow has no part 'nothing'"),
    "state of a source": (lambda run: run.state_rows("rows"), r"'rows' is not an operator.*\n.*\['op'\]"),
    "unknown side": (lambda run: run.output("op", side="refunds"), r"'op' has no output 'refunds'\n.*\['late'\]"),
    "a list as a name": (lambda run: run.output(["op"]), r"the flow has no part \['op'\]"),
    "a list as a source": (lambda run: run.feed(["rows"], []), r"the flow has no source \['rows'\]"),
    "one row": (lambda run: run.feed("rows", {"k": "a"}), "rows are a list of dicts or an Arrow table, got dict"),
    "no rows": (lambda run: run.feed("rows", None), "rows are a list of dicts or an Arrow table, got NoneType"),
    "rows of numbers": (lambda run: run.feed("rows", [7]), "got list with 7"),
    "feed_all of a list": (lambda run: run.feed_all([]), "feed_all takes a dict of rows by source, got list"),
    "ticks": (lambda run: run.tick(epochs="3"), "`epochs` must be a whole number, got '3'"),
    "rescale": (lambda run: run.rescale(0), "`parallelism` must be at least 1, got 0"),
    "rescale to text": (lambda run: run.rescale("2"), "`parallelism` must be a whole number, got '2'"),
}


@pytest.mark.parametrize(("mistake", "text"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_a_test_is_named(run: testing.TestRun, mistake: Callable[[Any], Any], text: str) -> None:
    with pytest.raises(InputError, match=text) as refused:
        mistake(run)
    assert refused.value.fix
    assert "aggregate_" not in refused.value.fix, "a generated name"


@pytest.mark.parametrize("arguments", [{"flow": None}, {"store": "folder"}, {"memory_shares": 0.5}, {"parallelism": 0}])
def test_arguments_of_run_are_checked(arguments: dict[str, Any]) -> None:
    with pytest.raises(InputError), testing.run(**{"flow": sb.Flow("shop"), **arguments}):
        pass


@pytest.mark.parametrize("value", [NOON.replace(tzinfo=TOKYO), "2020-01-01T12:00:00+09:00"])
def test_a_time_with_a_zone_in_a_column_without_one_is_refused(run: testing.TestRun, value: Any) -> None:
    with pytest.raises(InputError, match=r"has a time zone, but the column is timestamp_ntz") as refused:
        run.feed("rows", [{"k": "a", "n": value, "ts": 0}])
    assert refused.value.where == "rows for the source 'rows', column 'n'"
    assert "'2020-01-01T12:00:00'" in refused.value.fix


def test_a_local_time_and_utc_keep_their_clock_time(run: testing.TestRun) -> None:
    run.feed("rows", [{"n": NOON, "ts": 0}, {"n": NOON.replace(tzinfo=dt.UTC), "ts": 0}])
    assert [row["n"] for row in run.output("rows")] == [NOON, NOON]


def test_a_time_with_a_zone_in_a_column_with_one_is_the_same_instant(run: testing.TestRun) -> None:
    run.feed("rows", [{"ts": NOON.replace(tzinfo=TOKYO)}])
    assert run.output("rows")[0]["ts"] == NOON.replace(tzinfo=TOKYO)


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.list_(pa.timestamp("us"))])
def test_results_of_functions_do_not_lose_their_zone(kind: pa.DataType) -> None:
    time = NOON.replace(tzinfo=TOKYO)
    with pytest.raises(ValueError, match="would become"):
        exact_array([time] if kind == pa.timestamp("us") else [[time]], kind)
    assert exact_array([NOON, NOON.replace(tzinfo=dt.UTC)], pa.timestamp("us")).to_pylist() == [NOON, NOON]
