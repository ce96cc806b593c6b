"""Results that stand in the state, for a sink that is written anew; and why others do not."""

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import statebed as sb
from statebed.checkpoint import CheckpointLog
from statebed.flow import Edge, Flow
from statebed.spark.plan.rebuild import rebuilds
from statebed.spark.plan.topology import topology
from statebed.storage import MemoryStore, ScopedStore

ROWS = [{"driver": name, "cents": number} for number, name in enumerate(["ann", "bob", "ann", "cid", None, "ann"])]
FOREVER = {"ttl": "1 day", "ttl_clock": "epoch_time"}
Build = Callable[[Any], Any]


def rebuilt(build: Callable[[Any], Mapping[str, Any]], output: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run a flow over ROWS; what each of its sinks would be written anew with, or why not, and an output's rows."""
    flow = Flow("rides")
    source = flow.source("rides", "driver string, cents bigint")
    streams = build(source)
    disk = MemoryStore()
    with sb.testing.run(flow, parallelism=3, store=disk) as run:
        for row in ROWS:
            run.feed("rides", [row])
        expected = run.output(output)
    store = ScopedStore(disk, "rides")
    record = CheckpointLog(store, "rides").head()
    assert record is not None
    edges = {name: stream.edge for name, stream in streams.items()}
    found: dict[str, Any] = {}
    for name, rebuild in rebuilds(
        topology(flow.graph, [Edge(source.edge.node)], edges), job_id="rides", store=store
    ).items():
        if isinstance(rebuild, str):
            found[name] = rebuild
            continue
        with rebuild(record) as made:
            tables = [pq.read_table(pa.BufferReader(made.store.get(file.path))) for file in made.files]
        rows = pa.concat_tables(tables).to_pylist()
        assert sum(file.rows for file in made.files) == len(rows)
        assert all(row.pop("_weight", 1) == 1 for row in rows)
        found[name] = sorted(rows, key=repr)
    return found, sorted(expected, key=repr)


def test_the_results_of_an_updating_aggregate_go_through_the_steps_of_their_sink() -> None:
    def build(source: Any) -> Mapping[str, Any]:
        totals = source.key_by("driver", name="totals").agg(trips=sb.count(), mean=sb.mean("cents"))
        return {"direct": totals, "behind": totals.where("trips < 3").with_columns(twice="trips * 2")}

    found, expected = rebuilt(build, "totals")
    assert found["direct"] == expected
    assert found["behind"] == sorted(
        ({**row, "twice": row["trips"] * 2} for row in expected if row["trips"] < 3), key=repr
    )


STANDING: dict[str, Build] = {
    "top-n": lambda source: source.key_by("driver", name="rows").top(2, "cents desc", number="place"),
    "top-n with ranks, behind a changelog": lambda source: (
        source.key_by("driver", name="totals")
        .agg(trips=sb.count())
        .key_by(name="rows")
        .top(2, "trips desc", numbering="rank")
    ),
    "a join": lambda source: source.join(source.key_by("driver").agg(n=sb.count()), on="driver", name="rows"),
    "a join with a condition": lambda source: source.join(
        source.key_by("driver").agg(n=sb.count(), least=sb.min("cents")),
        on="driver",
        condition="cents > least",
        name="rows",
    ),
    "a semi join": lambda source: source.join(
        source.where("cents > 2").key_by("driver").agg(n=sb.count()), on="driver", how="semi", name="rows"
    ),
    "a full join of keys that cannot be null": lambda source: (
        source.key_by("driver", name="drivers")
        .agg(n=sb.count())
        .join(
            source.key_by("cents", name="fares").agg(n=sb.count(), most=sb.max("cents")),
            on="n",
            how="full",
            name="rows",
        )
    ),
    "the last row of a key": lambda source: source.deduplicate("driver", keep="last", order_by="cents", name="rows"),
    "the first row of a key that is the whole row": lambda source: source.select("driver").deduplicate(
        "driver", name="rows"
    ),
}


@pytest.mark.parametrize("build", STANDING.values(), ids=STANDING)
def test_state_that_holds_every_result_is_written_anew_as_the_sink_had_it(build: Build) -> None:
    found, expected = rebuilt(lambda source: {"sink": build(source)}, "rows")
    assert found["sink"] == expected
    assert expected


REFUSED: dict[str, tuple[Build, str]] = {
    "an aggregate that forgets": (
        lambda source: source.key_by("driver", name="rows").agg(trips=sb.count(), **FOREVER),
        "`ttl` has removed results",
    ),
    "top-n that forgets": (
        lambda source: source.key_by("driver", name="rows").top(2, "cents", **FOREVER),
        "`ttl` has removed results",
    ),
    "the first of rows with other columns": (
        lambda source: source.deduplicate("driver", name="rows"),
        "not its other columns",
    ),
    "a join that forgets": (
        lambda source: source.join(source.key_by("driver").agg(n=sb.count()), on="driver", name="rows", **FOREVER),
        "`ttl` has removed results",
    ),
    "a left join of keys that may be null": (
        lambda source: source.join(source.key_by("driver").agg(n=sb.count()), on="driver", how="left", name="rows"),
        "with a null in the key driver are results of a left join",
    ),
    "results of several operators": (
        lambda source: (
            source.key_by("driver", name="rows").agg(n=sb.count()).union(source.key_by("driver").agg(n=sb.sum("cents")))
        ),
        "several operators",
    ),
}


@pytest.mark.parametrize(("build", "why"), REFUSED.values(), ids=REFUSED)
def test_state_that_lacks_results_says_what_it_lacks(build: Build, why: str) -> None:
    found, _ = rebuilt(lambda source: {"sink": build(source)}, "rows")
    assert why in found["sink"]
