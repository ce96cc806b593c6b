"""Operators know by name what they read, through whatever lies between."""

import pyarrow as pa

from statebed.aggregates import functions as f
from statebed.flow import Flow

COLUMNS = pa.schema([("driver", pa.string()), ("fare", pa.float64())])


def test_origins_are_found_through_steps_unions_and_operators() -> None:
    flow = Flow("rides")
    day, night = flow.source("day", COLUMNS), flow.source("night", COLUMNS)
    total = day.where("fare > 0").union(night).key_by("driver", name="total").agg(paid=f.sum("fare"))
    total.select("paid").key_by("paid", name="spread").agg(drivers=f.count())
    assert flow.graph.origins("total") == [("day", "night")]
    assert flow.graph.origins("spread") == [("total",)]
