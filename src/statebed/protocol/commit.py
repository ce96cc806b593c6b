"""Commit decisions: who owns a number of the log, and whether a won number still counts.

A commit is one put-if-absent at the next number. If the response is lost, the put is repeated until the store reports
created or exists; the nonce then tells whether the existing record is this run's own.
"""

import enum

from statebed.errors import FencedError, InputError, ProtocolError, StateGoneError
from statebed.format import checkpoint_pb2 as pb


class Claim(enum.Enum):
    """Owner of the record at a number."""

    OURS = "ours"
    OTHERS = "others"


def check_nonce(record: pb.CheckpointMetadata) -> None:
    """Raise InputError if the record has no nonce; without one, its writer could not recognise it."""
    if not record.nonce:
        raise InputError(
            f"record {record.epoch} has no nonce",
            where=f"job {record.job_id}",
            fix="give every attempt to commit its own nonce, for example uuid.uuid4().hex",
        )


def claim_of(existing: pb.CheckpointMetadata, *, nonce: str) -> Claim:
    """Return whether an existing record is this attempt's own. If it is not, the number is taken."""
    return Claim.OURS if existing.nonce == nonce else Claim.OTHERS


def is_in_log(*, previous_is_current: bool, later_exists: bool) -> bool:
    """Return whether a number that was just won is at the end of the log.

    Clean-up deletes records in ascending order and never the head's predecessor. A missing predecessor therefore means
    that the number had been cleaned up and was created again, or that the state is gone; `explain_loss` distinguishes
    the two. A predecessor that another superseded run created again counts as missing. A run that opens has only read
    its predecessor, perhaps long ago, and number 1 has none: for both, a later record means the same.
    """
    return previous_is_current and not later_exists


def explain_loss(
    lost: int,
    *,
    job_id: str,
    known: pb.CheckpointMetadata | None,
    later: int | None,
    newest: pb.CheckpointMetadata | None,
) -> ProtocolError:
    """Return the error that explains why record `lost`, which a run relies on, is missing.

    Either a newer run cleaned it up, or the state is gone. `known` is the newest record that the run knew before it
    missed `lost`. `later` is a number beyond anything the run can have written. `newest` is the last readable record up
    to there that the run did not just write itself. A log that has advanced always has a later record, because the head
    is never deleted. A log that was removed and started again has a record that is foreign and younger; the clock only
    affects the exit code.
    """
    where = f"job {job_id}"
    if later is not None:
        return FencedError(
            f"this run is superseded: the log has advanced to record {later}, and record {lost} was cleaned up",
            where=where,
            fix="stop this process and do not restart it (exit code 86): the newer run continues the job",
        )
    if newest is not None and known is not None and _began_anew(newest, known):
        return FencedError(
            f"this run is superseded: the state was removed, and run {newest.run} ({newest.written_by}) started again",
            where=where,
            fix="stop this process and do not restart it (exit code 86): the newer run owns the job",
        )
    left = f"the newest record left is {newest.epoch}" if newest is not None else "no record is left"
    return StateGoneError(
        f"the state is gone: record {lost} no longer exists, and {left}; no newer run removed it",
        where=where,
        fix="check that the volume is mounted, and that the state folder was not deleted or replaced; "
        "restore it, then start the job again",
    )


def _began_anew(newest: pb.CheckpointMetadata, known: pb.CheckpointMetadata) -> bool:
    return newest.nonce != known.nonce and newest.finish_time_us > known.finish_time_us


def fenced(number: int, *, run: int, by: pb.CheckpointMetadata | None = None) -> FencedError:
    """Return the error of a run whose next number is already taken."""
    newer = f"run {by.run} ({by.written_by})" if by else "a newer run"
    return FencedError(
        f"run {run} is superseded: record {number} belongs to {newer}",
        where=f"job {by.job_id}" if by else "",
        fix="stop this process and do not restart it (exit code 86): the newer run continues the job",
    )
