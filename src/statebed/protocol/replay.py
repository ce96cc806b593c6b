"""Replay: what to do with a micro-batch, decided against the head of this lineage.

Never by "a record exists": a fork reuses batch ids for other rows. The head says which batch it holds, of which query,
with which offsets.
"""

import enum
from collections.abc import Mapping

from statebed.errors import ReplayError
from statebed.format import checkpoint_pb2 as pb

_FIX = (
    "stop the query and start the job again: Spark's checkpoint is rebuilt from the record. If its folder was given to "
    "another query, give that query a folder of its own"
)


class Replay(enum.Enum):
    """What to do with a batch."""

    PROCESS = "process"
    ALREADY_COMMITTED = "already committed"


def decide_replay(
    position: pb.SourcePosition,
    *,
    query_id: str,
    batch_id: int,
    offsets: bytes,
    committed: Mapping[int, bytes] | None = None,
) -> Replay:
    """Process the batch, or only publish what it left unpublished; anything that does not fit is refused.

    `offsets` is the batch's entry in Spark's offset log; `committed` holds the entries of earlier batches of this
    lineage as far as their records are retained.
    """
    if position.kind and position.kind != "spark":
        raise _disagree(f"the state was written by a program of kind {position.kind!r}, not by Spark")
    if not position.HasField("batch_id"):
        if batch_id != 0:
            raise _disagree(f"the state holds no batch yet, Spark offers batch {batch_id}")
        return Replay.PROCESS
    if position.query_id and query_id != position.query_id:
        raise _disagree(f"the state belongs to query {position.query_id}, Spark runs query {query_id}")
    if batch_id == position.batch_id + 1:
        return Replay.PROCESS
    if batch_id > position.batch_id:
        raise _disagree(
            f"the state holds batch {position.batch_id}, Spark offers batch {batch_id}: one is missing between"
        )
    known = dict(committed or {})
    known.update({int(entry.name): entry.content for entry in position.offsets})
    if batch_id not in known:
        raise _disagree(
            f"batch {batch_id} is older than anything this lineage retains (head: batch {position.batch_id})"
        )
    if known[batch_id] != offsets:
        raise _disagree(f"batch {batch_id} was committed with other offsets than Spark offers now")
    return Replay.ALREADY_COMMITTED


def _disagree(what: str) -> ReplayError:
    return ReplayError(f"Spark's checkpoint and the state log disagree: {what}", fix=_FIX)
