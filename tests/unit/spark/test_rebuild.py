"""Results that stand in the state, for a sink that is written anew."""

import pyarrow as pa
import pyarrow.parquet as pq

import statebed as sb
from statebed.checkpoint import CheckpointLog
from statebed.flow import Edge, Flow
from statebed.spark.plan.rebuild import rebuilds
from statebed.spark.plan.topology import topology
from statebed.storage import MemoryStore, ScopedStore

ROWS = [{"driver": name, "cents": number} for number, name in enumerate(["ann", "bob", "ann", "cid", None, "ann"])]


def test_the_results_of_an_updating_aggregate_go_through_the_steps_of_their_sink() -> None:
    flow = Flow("rides")
    source = flow.source("rides", "driver string, cents bigint")
    totals = source.key_by("driver", name="totals").agg(trips=sb.count(), mean=sb.mean("cents"))
    shown = totals.where("trips < 3").with_columns(twice="trips * 2")
    bounded = source.key_by("driver", name="bounded").agg(trips=sb.count(), ttl="1 day", ttl_clock="epoch_time")
    sinks = {"direct": totals.edge, "behind": shown.edge, "expiring": bounded.edge}
    disk = MemoryStore()
    with sb.testing.run(flow, parallelism=3, store=disk) as run:
        for row in ROWS:
            run.feed("rides", [row])
        expected = run.output("totals")
    store = ScopedStore(disk, "rides")
    record = CheckpointLog(store, "rides").head()
    assert record is not None
    found = rebuilds(topology(flow.graph, [Edge(source.edge.node)], sinks), job_id="rides", store=store)
    assert set(found) == {"direct", "behind"}  # what expired is not in the state, but in the sink
    rows = {}
    for name, rebuild in found.items():
        with rebuild(record) as rebuilt:
            tables = [pq.read_table(pa.BufferReader(rebuilt.store.get(file.path))) for file in rebuilt.files]
        rows[name] = pa.concat_tables(tables).to_pylist()
        assert sum(file.rows for file in rebuilt.files) == len(rows[name])
    assert all(row.pop("_weight") == 1 for some in rows.values() for row in some)
    assert sorted(rows["direct"], key=repr) == sorted(expected, key=repr)
    assert sorted(rows["behind"], key=repr) == sorted(
        ({**row, "twice": row["trips"] * 2} for row in expected if row["trips"] < 3), key=repr
    )
