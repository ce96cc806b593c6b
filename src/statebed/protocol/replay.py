"""Replay decisions: what to do with a micro-batch, given the head of this lineage.

The existence of a record is not enough, because a fork reuses batch ids for other rows. The head names the batch that
it holds, its query and its offsets.
"""

import enum
from collections.abc import Mapping

from statebed.errors import ReplayError
from statebed.format import checkpoint_pb2 as pb

_FIX = (
    "stop the query and start the job again: Spark's checkpoint is rebuilt from the record. If its folder was given to "
    "another query, give that query a separate folder"
)


class Replay(enum.Enum):
    """Decision about a batch."""

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
    """Decide whether to process the batch, or only to publish what it left unpublished; raise ReplayError on a
    mismatch.

    `offsets` is the batch's entry in Spark's offset log. `committed` holds the entries of earlier batches of this
    lineage whose records are retained.
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
            f"the state holds batch {position.batch_id}, Spark offers batch {batch_id}: a batch in between is missing"
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
