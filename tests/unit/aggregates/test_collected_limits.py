"""Collected values with a limit: the first or last of them, in state that holds no others."""

import random
from typing import Any

import pyarrow as pa
import pytest

import statebed as sb
from statebed import testing
from statebed.aggregates.aggregate import bound_from_description
from statebed.errors import InputError
from statebed.storage import LocalStore

COLUMNS = "k bigint, v bigint, t string, ts timestamp"
LIMIT = 5


def flow_of(*, windowed: bool = False) -> sb.Flow:
    flow = sb.Flow("limits")
    rows = flow.source("rows", COLUMNS, watermark=("ts", "0s"))
    grouped: Any = (
        rows.group_by("k", sb.tumbling("1000 days"), name="result") if windowed else rows.key_by("k", name="result")
    )
    grouped.agg(
        **({"emit": "early"} if windowed else {}),
        oldest=sb.collect_list("v", limit=LIMIT),
        newest=sb.collect_list("v", limit=LIMIT, keep="last"),
        least=sb.collect_set("v", limit=LIMIT),
        most=sb.collect_set("v", limit=LIMIT, keep="last"),
        first_texts=sb.string_agg("t", "|", limit=LIMIT),
        last_texts=sb.string_agg("t", "|", limit=LIMIT, keep="last"),
    )
    return flow


def expected_of(rows: list[dict[str, Any]], key: int) -> dict[str, Any]:
    mine = [row for row in rows if row["k"] == key]
    values = [value for _, value in sorted((row["ts"], row["v"]) for row in mine if row["v"] is not None)]
    texts = [text for _, text in sorted((row["ts"], row["t"]) for row in mine if row["t"] is not None)]
    distinct = sorted(set(values))
    return {
        "k": key,
        "oldest": values[:LIMIT],
        "newest": values[-LIMIT:],
        "least": distinct[:LIMIT],
        "most": distinct[-LIMIT:],
        "first_texts": "|".join(texts[:LIMIT]) if texts else None,
        "last_texts": "|".join(texts[-LIMIT:]) if texts else None,
    }


def rows_of(draw: random.Random, count: int) -> list[dict[str, Any]]:
    return [
        {
            "k": draw.randrange(3),
            "v": draw.choice([None, *range(20)]),
            "t": draw.choice([None, "a", "b", ""]),
            "ts": draw.randrange(50),
        }
        for _ in range(count)
    ]


@pytest.mark.parametrize("windowed", [False, True], ids=["updating", "windowed"])
def test_p6_the_first_or_last_values_are_collected_and_no_others_are_kept(windowed: bool) -> None:
    draw, fed = random.Random(11), list[dict[str, Any]]()
    with testing.run(flow_of(windowed=windowed), parallelism=2) as run:
        for epoch in range(5):
            rows = rows_of(draw, 30)
            fed += rows
            run.feed("rows", rows)
            if epoch == 2:
                run.crash()
            if epoch == 3:
                run.rescale(3)
            names = ["k", "oldest", "newest", "least", "most", "first_texts", "last_texts"]
            results = [{name: row[name] for name in names} for row in run.output("result")]
            keys = sorted({row["k"] for row in fed})
            assert sorted(results, key=lambda row: int(row["k"])) == [expected_of(fed, key) for key in keys]
        if not windowed:
            state = run.state("result", "groups")
            lists = [name for name in state.column_names if name.endswith(("_values", "_times"))]
            assert len(lists) == 6
            assert all(len(value) <= LIMIT for name in lists for value in state[name].to_pylist())
            assert run.state_rows("result") == len(keys)


def test_results_with_a_limit_are_read_from_the_state(tmp_path: Any) -> None:
    rows = rows_of(random.Random(2), 100)
    with testing.run(flow_of(), store=LocalStore(tmp_path)) as run:
        run.feed("rows", rows)
    read = sb.read_state(str(tmp_path), job="limits", operator="result", results=True).to_arrow().to_pylist()
    assert sorted(read, key=lambda row: int(row["k"])) == [expected_of(rows, key) for key in range(3)]


@pytest.mark.parametrize(
    "aggregate",
    [
        sb.collect_list("v", limit=3),
        sb.collect_list("v", limit=3, keep="last"),
        sb.collect_list("v"),
        sb.string_agg("v", "3"),
        sb.string_agg("v", "first", limit=3),
    ],
)
def test_a_stored_description_gives_the_same_aggregate(aggregate: Any) -> None:
    bound = aggregate.bind("all", input_types=(pa.string(), pa.timestamp("us", "UTC")), text="v")
    again = bound_from_description(bound.description, changelog=False)
    assert again == bound
    assert again.accumulator == bound.accumulator


def test_a_limit_over_a_changelog_is_refused() -> None:
    flow = sb.Flow("limits")
    rows = flow.source("rows", COLUMNS, watermark=("ts", "0s")).key_by("k", "t", name="each").agg(v=sb.max("v"))
    with pytest.raises(InputError, match="never retracted"):
        rows.key_by("k", name="result").agg(all=sb.collect_set("v", limit=3))


@pytest.mark.parametrize("limit", [0, -1, 100_001, True, 2.5, "3"])
def test_a_limit_is_an_integer_in_range(limit: Any) -> None:
    with pytest.raises(InputError, match="`limit` must be an integer from 1 to 100000"):
        sb.collect_list("v", limit=limit)


def test_keep_needs_a_limit_and_a_known_end() -> None:
    with pytest.raises(InputError, match="`keep` needs `limit`"):
        sb.collect_set("v", keep="last")
    with pytest.raises(InputError, match="'first' or 'last'"):
        sb.string_agg("v", limit=3, keep="newest")  # type: ignore[arg-type]
