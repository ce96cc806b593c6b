"""A user's own function on Spark: states, timers of both clocks, side outputs, restarts."""

import datetime as dt
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark import cloudpickle

import statebed as sb

pytestmark = pytest.mark.filterwarnings("ignore::statebed.errors.UnboundedStateWarning")


class Visits(sb.Process):
    """Number of rides of a driver; a reminder of processing time soon after each batch."""

    count = sb.ValueState("rides bigint")
    output = "driver string, rides bigint, why string"
    side_outputs = {"first": "driver string"}  # noqa: RUF012 - as users write it

    def on_batch(self, rows: pa.RecordBatch, ctx: sb.Context) -> pa.Table:
        before = ctx.get(self.count)["rides"].combine_chunks()
        known = np.array([0 if one is None else one for one in before.to_pylist()], dtype=np.int64)
        rides = pa.array(known + ctx.key_sizes)
        ctx.put(self.count, pa.table({"rides": rides}))
        ctx.processing_timer(pa.scalar(ctx.epoch_time.value + 50_000))
        drivers = ctx.keys["driver"]
        ctx.side("first", pa.table({"driver": drivers.filter(pa.array(known == 0))}))
        return pa.table({"driver": drivers, "rides": rides, "why": ["rows"] * len(rides)})

    def on_timer(self, timers: pa.RecordBatch, ctx: sb.Context) -> pa.Table:
        rides = ctx.get(self.count)["rides"]
        return pa.table({"driver": timers["driver"], "rides": rides, "why": ["timer"] * timers.num_rows})


@pytest.fixture
def by_value() -> Iterator[None]:
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # pyspark ships it without types
    yield
    cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]  # as above


def test_a_process_keeps_its_state_over_restarts_and_its_timers_fire_without_rows(rides: Any, by_value: None) -> None:
    rides.add_files(2)
    given: dict[str, list[dict[str, Any]]] = {"main": [], "first": []}

    def job(parallelism: int) -> sb.Job:
        made = sb.Job("visits", state=rides.state, spark=rides.spark, parallelism=parallelism)
        visits = (
            made.source(rides.frame(), name="rides", watermark=("ts", "1 minute"))
            .key_by("driver")
            .process(Visits(), name="visits")
        )
        for name, stream in (("main", visits), ("first", visits.side("first"))):

            def keep(df: Any, epoch: int, name: str = name) -> None:
                given[name] += [{**row.asDict(), "epoch": epoch} for row in df.collect()]

            stream.write(keep, name=name)
        return made

    assert job(2).start(available_now=True).await_termination(180)
    rides.add_files(1)
    query = job(3).start(processing_time="0 seconds")
    query.spark_query.processAllAvailable()
    batches = {one.epoch for one in query.recent_progress if one.batch_id is not None}
    deadline = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=90)
    while dt.datetime.now(dt.UTC) < deadline and not any(
        row["why"] == "timer" and row["epoch"] not in batches and row["epoch"] > max(batches) for row in given["main"]
    ):
        query.await_termination(0.2)
    query.stop()
    last = {row["driver"]: row["rides"] for row in given["main"] if row["why"] == "timer"}
    assert sum(last.values()) == rides.files * 120
    assert sorted(map(str, (row["driver"] for row in given["first"]))) == sorted(map(str, last))
