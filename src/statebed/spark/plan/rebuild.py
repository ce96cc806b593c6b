"""Rebuilds the results of a job from its state, for a sink that is rewritten.

This is possible if the state of one operator determines all current results: an updating aggregate, an updating join,
top-n or deduplication without time to live. The rows go through the same steps as those of epochs. They are read and
written in batches, to files in a temporary folder, which is removed at the end.
"""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Protocol

from statebed.checkpoint import Rebuilt
from statebed.checkpoint.publisher import Rebuild
from statebed.format import checkpoint_pb2 as pb
from statebed.format.digest import crc32c, digest
from statebed.format.schema import TIME
from statebed.operators.operator import MAIN, Operator, ResultsInState
from statebed.protocol.sink_start import NOT_IN_STATE
from statebed.spark.plan.topology import OutgoingRows, Topology
from statebed.state import TableManager, TaskInfo
from statebed.storage import LocalStore, ObjectStore
from statebed.subtasks.outbox import encode_outbox


def rebuilds(topology: Topology, *, job_id: str, store: ObjectStore) -> Mapping[str, Rebuild | str]:
    """Map each sink to the function that computes its results from state, or to the reason why that is impossible.

    `store` is the job's folder.
    """
    by_sink: dict[str, Rebuild | str] = {}
    for sink_id, wanted in topology.sinks.items():
        origins = [
            (place.operator, outgoing)
            for place in topology.places
            for outgoing in place.outgoing
            if outgoing.stream == wanted.stream and wanted.operator_id in {"", place.operator.operator_id}
        ]
        operator, outgoing = origins[0]
        if len(origins) > 1:
            by_sink[sink_id] = "its rows come from several operators"
        elif any(output != MAIN for output, _ in outgoing.origins):
            by_sink[sink_id] = "late rows and side outputs are not kept in state"
        elif not isinstance(operator, ResultsInState):
            by_sink[sink_id] = NOT_IN_STATE
        else:
            task = TaskInfo(job_id, operator.operator_id)
            by_sink[sink_id] = operator.why_incomplete() or partial(_rebuilt, operator, outgoing, task, store)
    return by_sink


class RebuildableOperator(Operator, ResultsInState, Protocol):
    """An operator whose results can be read from its state."""


@contextlib.contextmanager
def _rebuilt(
    operator: RebuildableOperator,
    outgoing: OutgoingRows,
    task: TaskInfo,
    store: ObjectStore,
    record: pb.CheckpointMetadata,
) -> Iterator[Rebuilt]:
    with tempfile.TemporaryDirectory(prefix="statebed-rebuild-") as folder:
        local = LocalStore(folder)
        files = []
        with TableManager(task, operator.tables, store, restore_from=record) as manager:
            for number, results in enumerate(operator.results_in_state(manager)):
                rows = outgoing.rows({MAIN: results})
                if rows.num_rows:
                    data = encode_outbox(rows.drop_columns([TIME]))
                    path = f"{operator.operator_id}-{number}.{digest(data)}.parquet"
                    local.put(path, data)
                    files.append(pb.OutboxFile(path=path, size=len(data), rows=rows.num_rows, crc32c=crc32c(data)))
        yield Rebuilt(tuple(files), local)
