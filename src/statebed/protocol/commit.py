"""Committing: who owns a number of the log, and whether winning it still counts.

A commit is one put-if-absent at the next number. Its answer may be lost; then it is repeated until it says created or
exists, and the nonce tells whether the record found is one's own.
"""

import enum

from statebed.errors import FencedError, InputError, ProtocolError, StateGoneError
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


def is_in_log(*, previous_stands: bool, later_exists: bool) -> bool:
    """After winning a number: whether it was won at the end of the log.

    Records are collected in ascending order and the head's predecessor never, so a missing predecessor means that the
    number had been collected and was created again, or that the state is gone: `explain_loss` tells them apart. A
    predecessor that another superseded run created again counts as missing. A run that opens has only read its
    predecessor, perhaps long ago, and number 1 has none: for them any later record says the same.
    """
    return previous_stands and not later_exists


def explain_loss(
    lost: int,
    *,
    job_id: str,
    known: pb.CheckpointMetadata | None,
    later: int | None,
    newest: pb.CheckpointMetadata | None,
) -> ProtocolError:
    """Why record `lost`, which a run relies on, is not there: a newer run collected it, or the state is gone.

    `known` is the newest record before `lost` was missed that the run knows, `later` a number beyond everything that
    the run can have written, `newest` the last readable record up to there that the run did not just write itself.
    Whatever moves the log on leaves a later record, because the head is never collected. A log that was removed and
    begun anew is recognised by a record that is foreign and younger; the clock decides over the exit code only.
    """
    where = f"job {job_id}"
    if later is not None:
        return FencedError(
            f"this run is superseded: the log has moved on to record {later} and collected record {lost}",
            where=where,
            fix="stop this process and do not restart it (exit code 86): the newer run continues the job",
        )
    if newest is not None and known is not None and _began_anew(newest, known):
        return FencedError(
            f"this run is superseded: the state was removed, and run {newest.run} ({newest.written_by}) began anew",
            where=where,
            fix="stop this process and do not restart it (exit code 86): the newer run owns the job",
        )
    left = f"the newest record left is {newest.epoch}" if newest is not None else "no record is left"
    return StateGoneError(
        f"the state is gone: record {lost} is not there any more, and {left}; no newer run removed it",
        where=where,
        fix="check that the volume is mounted, and that nobody deleted or replaced the state folder; "
        "restore it, then start the job again",
    )


def _began_anew(newest: pb.CheckpointMetadata, known: pb.CheckpointMetadata) -> bool:
    return newest.nonce != known.nonce and newest.finish_time_us > known.finish_time_us


def fenced(number: int, *, run: int, by: pb.CheckpointMetadata | None = None) -> FencedError:
    """The error of a run that found its next number taken."""
    newer = f"run {by.run} ({by.written_by})" if by else "a newer run"
    return FencedError(
        f"run {run} is superseded: record {number} belongs to {newer}",
        where=f"job {by.job_id}" if by else "",
        fix="stop this process and do not restart it (exit code 86): the newer run goes on with the job",
    )
