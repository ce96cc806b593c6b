"""Jobs to look at: a flow on the real engine, whose records also tell what those of a job on Spark tell."""

import dataclasses
import datetime as dt
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from statebed import testing
from statebed.aggregates import functions as f
from statebed.checkpoint import EpochDraft
from statebed.flow import Flow
from statebed.format import checkpoint_pb2 as pb
from statebed.operators.window_definition import tumbling
from statebed.storage import ObjectStore
from statebed.testing import TestRun

RIDES = pa.schema([("driver", pa.string()), ("fare", pa.float64()), ("ts", pa.timestamp("us", "UTC"))])
START = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
MB = 1_000_000


def rides_flow(name: str = "rides") -> Flow:
    """Rides per driver and minute, the busiest drivers, and what each driver earned."""
    flow = Flow(name)
    rides = flow.source("rides", RIDES, watermark=("ts", "10 seconds"))
    per_minute = rides.group_by("driver", tumbling("1 minute"), name="per_minute").agg(
        trips=f.count(), total=f.sum("fare")
    )
    per_minute.select("driver", "trips").group_by(tumbling("1 minute"), name="busiest").top(3, "trips desc")
    rides.key_by("driver", name="earned").agg(total=f.sum("fare"))
    return flow


class Writer:
    """Commits one epoch after the other."""

    def __init__(self, run: TestRun, flow: Flow, seed: int = 7) -> None:
        self.run = run
        self._flow = flow
        self._random = random.Random(seed)
        self._minute = 0
        self._dress()

    def epochs(self, count: int, *, rows: int = 60, drivers: int = 40) -> None:
        for _ in range(count):
            self._minute += 1
            base = START + dt.timedelta(seconds=20 * self._minute)
            times = [base - dt.timedelta(seconds=self._random.expovariate(0.25)) for _ in range(rows)]
            some = [
                {
                    "driver": f"driver {self._random.randrange(drivers)}",
                    "fare": round(5 + 20 * self._random.random(), 2),
                }
                for _ in times
            ]
            self.run.feed("rides", [row | {"ts": moment} for row, moment in zip(some, times, strict=True)])

    def rescale(self, parallelism: int) -> None:
        self.run.rescale(parallelism)
        self._dress()

    def feed(self, driver: str, fare: float = 1.0) -> None:
        """One row of a driver with any name."""
        moment = START + dt.timedelta(seconds=20 * self._minute)
        self.run.feed("rides", [{"driver": driver, "fare": fare, "ts": moment}])

    def _dress(self) -> None:
        """Let records tell definitions, inputs, sources, sinks, phases and memory, as those of a job on Spark do."""
        live = self.run._cluster.run
        commit = live.commit

        def dressed(draft: EpochDraft) -> pb.CheckpointMetadata:
            return commit(self._told(draft))

        live.commit = dressed  # type: ignore[method-assign]

    def _told(self, draft: EpochDraft) -> EpochDraft:
        graph, cluster = self._flow.graph, self.run._cluster
        clocks, _ = cluster._pending
        now_us = time.time_ns() // 1000
        for entry in draft.operators:
            operator, clock = graph.operators[entry.operator_id], clocks[entry.operator_id]
            entry.definition = operator.definition.described
            entry.rows_out = entry.rows_in // 2
            del entry.inputs[:]
            for one, names in zip(operator.inputs, graph.origins(entry.operator_id), strict=True):
                entry.inputs.append(
                    pb.InputWatermark(
                        input=one.name, late_us=clock.late_us, watermark_us=clock.watermark_us, origins=names
                    )
                )
        took = {
            name: int(micros * (0.7 + 0.6 * self._random.random()))
            for name, micros in {
                "planning": 42_000, "read": 180_000, "shuffle": 95_000, "merge": 60_000, "write": 120_000
            }.items()
        }  # fmt: skip
        figures = pb.EpochFigures()
        if draft.figures is not None:
            figures.CopyFrom(draft.figures)
        figures.phases_us.update(took)
        figures.previous_phases_us.update({"commit": 31_000, "publish": 22_000})
        for host in ("host_a", "host_b"):
            held = {
                "per_minute.partials": 9 * MB,
                "earned.totals": 14 * MB,
                "reads": int(4 * MB * self._random.random()),
            }
            figures.hosts.append(
                pb.HostFigures(
                    host=host,
                    budget_bytes=64 * MB,
                    peak_bytes=sum(held.values()),
                    holders=held,
                    cache_bytes=20 * MB,
                    cache_limit_bytes=100 * MB,
                )
            )
        figures.compaction.CopyFrom(pb.CompactionFigures(rounds=3, merges=9, read_bytes=40 * MB, written_bytes=22 * MB))
        return dataclasses.replace(
            draft,
            figures=figures,
            sources=[
                pb.SourceWatermark(
                    source=name,
                    watermark_us=one.watermark_us,
                    max_event_time_us=one.max_event_time_us,
                    last_rows_us=now_us,
                )
                for name, one in cluster.sources.items()
            ],
            sinks=[
                pb.SinkEntry(sink_id="minutes", operator_id="per_minute"),
                pb.SinkEntry(sink_id="podium", operator_id="busiest"),
            ],
            epoch_time_us=now_us,
            start_time_us=now_us - sum(took.values()),
        )


@contextmanager
def written(store: ObjectStore, *, name: str = "rides", parallelism: int = 2, retained: int = 1000) -> Iterator[Writer]:
    """A job that runs, with no epoch yet."""
    flow = rides_flow(name)
    with testing.run(flow, parallelism=parallelism, store=store, retained_epochs=retained) as run:
        yield Writer(run, flow)
