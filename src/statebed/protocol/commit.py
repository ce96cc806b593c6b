"""Committing: who owns a number of the log, and whether winning it still counts.

A commit is one put-if-absent at the next number. Its answer may be lost; then it is repeated until it says created or
exists, and the nonce tells whether the record found is one's own.
"""

import enum

from statebed.errors import FencedError, InputError
from statebed.format import checkpoint_pb2 as pb


class Claim(enum.Enum):
    """Whose record stands at the number."""

    OURS = "ours"
    OTHERS = "others"


def check_nonce(record: pb.CheckpointMetadata) -> None:
    """A record without a nonce cannot be told from another's, so it is refused before it is written."""
    if not record.nonce:
        raise InputError(
            f"record {record.epoch} has no nonce",
            where=f"job {record.job_id}",
            fix="give every attempt to commit a nonce of its own, for example uuid.uuid4().hex",
        )


def claim_of(existing: pb.CheckpointMetadata, *, nonce: str) -> Claim:
    """Finding one's own record is success; any other means that the number is taken."""
    return Claim.OURS if existing.nonce == nonce else Claim.OTHERS


def check_still_in_log(number: int, *, previous_exists: bool, later_exists: bool) -> None:
    """After winning `number`: was it won in the log, or re-created after it had been collected?

    Records are collected in ascending order and the head's predecessor never, so a missing predecessor means that
    `number` itself had been collected. One that another superseded run put there again is as good as missing. Who opens
    a run cannot tell such a one, and number 1 has no predecessor: there, any later record tells the same.
    """
    if previous_exists and not later_exists:
        return
    raise FencedError(
        f"record {number} was won only because the log had moved on and collected that number",
        fix="this run was paused for long and is superseded: stop it, and do not restart it",
    )


def fenced(number: int, *, run: int, by: pb.CheckpointMetadata | None = None) -> FencedError:
    """The error of a run that found its next number taken."""
    newer = f"run {by.run} ({by.written_by})" if by else "a newer run"
    return FencedError(
        f"run {run} is superseded: record {number} belongs to {newer}",
        where=f"job {by.job_id}" if by else "",
        fix="stop this process and do not restart it (exit code 86): the newer run goes on with the job",
    )
