"""Records of a flow that runs in tests count what its operators did."""

import pyarrow as pa

from statebed import testing
from statebed.aggregates import functions as f
from statebed.checkpoint import CheckpointLog
from statebed.flow import Flow
from statebed.format import checkpoint_pb2 as pb
from statebed.storage import MemoryStore, ScopedStore


def head(store: MemoryStore) -> pb.CheckpointMetadata:
    found = CheckpointLog(ScopedStore(store, "rides"), "rides").recover().head
    assert found is not None
    return found


COLUMNS = pa.schema([("driver", pa.string()), ("fare", pa.float64())])


def test_counts_are_of_each_epoch_alone_and_sizes_of_its_end() -> None:
    flow = Flow("rides")
    rides = flow.source("rides", COLUMNS)
    rides.key_by("driver", name="total").agg(trips=f.count())
    store = MemoryStore()
    with testing.run(flow, parallelism=2, store=store) as t:
        t.feed("rides", [{"driver": f"d{number}", "fare": 1.0} for number in range(50)])
        first = head(store)
        t.spill()
        t.feed("rides", [{"driver": "d1", "fare": 1.0}])
        second = head(store)
    assert [first.operators[0].rows_in, second.operators[0].rows_in] == [50, 1]
    assert [first.operators[0].rows_out, second.operators[0].rows_out] == [50, 2]
    assert list(first.operators[0].inputs[0].origins) == ["rides"]
    assert [one.source for one in first.sources] == ["rides"]
    assert first.operators[0].definition
    [table] = second.figures.operators[0].tables
    assert table.rows >= 50
    assert table.store_bytes > 0
    assert table.spills > 0
    assert first.figures.operators[0].tables[0].spills == 0
    assert not second.figures.phases_us
