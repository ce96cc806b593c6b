"""Our side: the cases as jobs. Output is durable when the epoch is committed, as the files of its outbox."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

import statebed as sb
from bench.spark.cases import DELAY, Case, Kind

Frames = dict[str, DataFrame]
MEMORY = "1g"
"""Memory for state, half of it for the cache that both subtasks share; the default would be 4 GiB here."""


class OutboxSink:
    """Remembers the outbox files of every epoch, whose rows are durable already, and says when one has come."""

    def __init__(self, folder: Path, arrived: Callable[[], None]) -> None:
        self._folder = folder
        self._arrived = arrived
        folder.mkdir(parents=True)

    @property
    def sink_id(self) -> str:
        return "bench"

    @property
    def guarantee(self) -> sb.Guarantee:
        return sb.Guarantee.AT_LEAST_ONCE

    def open(self, run: int) -> None:
        """Do nothing: the sink keeps no position."""

    def roll_back(self, run: int, epoch: int) -> None:
        """Do nothing: it is never called."""

    def publish(self, publication: sb.Publication) -> None:
        self._arrived()
        for number, file in enumerate(publication.files):
            # Collecting garbage may remove the file under its own name.
            kept = self._folder / f"{publication.epoch:06d}-{number}.parquet"
            os.link(Path(publication.store.url) / file.path, kept)


class Totals(sb.Process):
    """The user's function: a running count and sum of each key."""

    total = sb.ValueState("n bigint, total bigint")
    output = "k bigint, n bigint, total bigint"

    def on_batch(self, rows: pa.RecordBatch, ctx: sb.Context) -> pa.Table:
        before = ctx.get(self.total)
        starts = ctx.key_starts
        counts = pa.array(np.diff(np.append(starts, rows.num_rows)))
        added = pa.array(np.add.reduceat(rows["v"].to_numpy(), starts))
        now = {
            "n": pc.add(pc.fill_null(before["n"], 0), counts),
            "total": pc.add(pc.fill_null(before["total"], 0), added),
        }
        ctx.put(self.total, pa.table(now))
        return pa.table({"k": ctx.keys["k"], **now})


def run_ours(
    session: SparkSession, case: Case, frames: Frames, folder: Path, arrived: Callable[[], None]
) -> list[dict[str, float]]:
    """Run the job to its end; the phases of each batch's epoch, in seconds."""
    job = sb.Job("bench", state=str(folder / "state"), memory=MEMORY, parallelism=2, spark=session)
    watermark = ("ts", DELAY) if case.by_time else None
    streams = {name: job.source(frame, name=name, watermark=watermark) for name, frame in frames.items()}
    result = _result(case, streams)
    result.write(OutboxSink(folder / "out", arrived))
    return run_to_end(job)


def run_to_end(job: sb.Job) -> list[dict[str, float]]:
    """Run a job over all that is there; the phases of each batch's epoch, in seconds."""
    query = job.start(available_now=True)
    query.await_termination()
    epochs = [progress for progress in query.recent_progress if progress.batch_id is not None]
    return [{phase: spent / 1e6 for phase, spent in progress.phases_us.items()} for progress in epochs]


def _result(case: Case, streams: dict[str, Any]) -> Any:
    rows = streams["a"]
    if case.kind is Kind.PROCESS:
        return rows.key_by("k", name="function").process(Totals())
    if case.kind is Kind.DEDUPLICATION:
        return rows.deduplicate("k", name="first").select("k")
    if case.kind is Kind.JOIN:
        joined = rows.join(streams["b"], "k", within=sb.between(_us(-case.interval_us), "0 s"), name="pairs")
        return joined.select("k", "v", "v_right")
    windows = {
        Kind.TUMBLING: sb.tumbling(_us(case.window_us)),
        Kind.SLIDING: sb.sliding(_us(case.window_us), _us(case.slide_us)),
        Kind.SESSION: sb.session(_us(case.gap_us)),
    }
    window = windows.get(case.kind)
    groups = rows.key_by("k", name="totals") if window is None else rows.group_by("k", window, name="windows")
    return groups.agg(n=sb.count(), total=sb.sum("v"))


def _us(length: int) -> str:
    return f"{length} microseconds"
