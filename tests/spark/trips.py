"""A job that keeps state for good, with compaction beside its epochs, and what its state must be."""

from typing import Any

import duck
import pyarrow.parquet as pq

import statebed as sb
from statebed.checkpoint.objects import fetch_subtask
from statebed.state import TableManager, TaskInfo
from statebed.storage import ScopedStore, get_storage_provider


def per_driver(rides: Any, **settings: object) -> sb.Job:
    """Trips of each driver, with a round of compaction as often as can be."""
    job = sb.Job(
        "rides", state=rides.state, parallelism=2, spark=rides.spark, settings={"compaction_every": 1} | settings
    )
    source = job.source(rides.frame(), name="rides", watermark=("ts", "1 minute"))
    trips = source.key_by("driver", name="per_driver").agg(trips=sb.count(), cents=sb.sum("cents"), ttl="1 day")
    trips.write(lambda rows, epoch: None, name="nowhere")
    return job


def state_of(rides: Any, job: sb.Job) -> list[tuple[Any, ...]]:
    store = ScopedStore(get_storage_provider(rides.state), "rides")
    operator = job.graph.operators["per_driver"]
    with TableManager(TaskInfo("rides", "per_driver"), operator.tables, store, restore_from=rides.record()) as manager:
        rows = [row for piece in manager.get_keyed("groups").scan() for row in piece.to_pylist()]
    return sorted(((row["driver"], row["trips"], row["cents"]) for row in rows), key=repr)


def expected(rides: Any) -> list[tuple[Any, ...]]:
    rows = pq.read_table(rides.input)
    with duck.cursor() as connection:
        connection.register("rides", rows)
        query = "select driver, count(*), sum(cents)::bigint from rides group by all"
        return sorted(connection.execute(query).fetchall(), key=repr)


def live_files(rides: Any) -> list[str]:
    store = ScopedStore(get_storage_provider(rides.state), "rides")
    return [
        file.path
        for entry in rides.record().operators
        for reference in entry.subtasks
        for table in fetch_subtask(store, reference).tables.values()
        for part in table.subtasks.values()
        for file in part.files
    ]
