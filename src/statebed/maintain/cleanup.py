"""Clean-up: lists the objects that it would remove and why, and removes them."""

import enum
from dataclasses import dataclass

from statebed.checkpoint import CheckpointLog, CleanupResult
from statebed.checkpoint.cleanup import Cleaner
from statebed.checkpoint.open_run import RunOptions, prepare_opening
from statebed.checkpoint.references import References
from statebed.errors import CleanupError, FormatError, ProtocolError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.maintain.tool_runs import (
    DEFAULT_TIMEOUT_S,
    KEEP_EVERYTHING,
    CommittedChange,
    Through,
    carry_out,
    end_run,
    is_over,
    own_run,
    whole_head,
)
from statebed.protocol.retention import DEFAULT_READER_GRACE_US

LOOKS = 10
"""Maximum number of attempts to list garbage while the job keeps committing."""


class Reason(enum.Enum):
    """Reason why an object can be removed."""

    RECORD = "record of an epoch that is no longer retained"
    EPOCH = "file of an epoch that is no longer retained"
    NEVER_NAMED = "not referenced by any record: left by a failed attempt or an unused compaction"


@dataclass(frozen=True)
class Garbage:
    """One object that clean-up would remove."""

    path: str
    size: int
    reason: Reason


@dataclass(frozen=True)
class RemovedFiles:
    """Number of objects that a clean-up in a separate run removed."""

    changed: CommittedChange
    records: int
    objects: int


def find_garbage(log: CheckpointLog, *, grace_us: int = DEFAULT_READER_GRACE_US) -> list[Garbage]:
    """Return the objects that a clean-up would remove now. Read-only.

    Compacted files of the live run that are not part of an epoch yet are not listed, because it may still commit them.
    """
    for _ in range(LOOKS):
        head = whole_head(log)
        try:
            return _find(log, grace_us)
        except (ProtocolError, FormatError):
            if whole_head(log).nonce == head.nonce:
                raise  # the log has not advanced in the meantime, so this is a real error
    raise CleanupError(
        f"the job committed {LOOKS} times while its objects were listed",
        where=f"job {log.job_id}, {log.store.url}",
        fix="try again, perhaps with a longer --grace",
    )


def _find(log: CheckpointLog, grace_us: int) -> list[Garbage]:
    references = References(log)
    opening = prepare_opening(log, references, RunOptions(retention=KEEP_EVERYTHING))
    records = [opening.view[number] for number in sorted(opening.view)]
    _check_readable(log, opening.damaged, records)
    head = records[-1]
    sizes = {
        info.path: info.size for folder in (names.CHECKPOINTS, names.COMPACTIONS) for info in log.store.list(folder)
    }
    in_flight = [path for path in sizes if names.run_of_compaction(path) == head.run]
    result = Cleaner(log, references).clean_up(
        records, grace_us=grace_us, sweep=True, in_flight=in_flight, dry_run=True
    )
    return _listed(result, sizes, min_epoch=head.min_epoch)


def remove_garbage(
    log: CheckpointLog,
    *,
    through: Through,
    grace_us: int = DEFAULT_READER_GRACE_US,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> CommittedChange | RemovedFiles:
    """Request a clean-up by the live run with its own settings, or clean up in a separate run if `through` says so or
    the job has ended.
    """
    head, only_after = whole_head(log), None
    if through is Through.LIVE_RUN:
        if not is_over(log, head):
            return carry_out(log, pb.Request(cleanup=pb.CleanupRequest()), through=through, timeout_s=timeout_s)
        through, only_after = Through.IDLE_JOB, int(head.epoch)
    find_garbage(log, grace_us=grace_us)  # finds obstacles before a run is fenced
    run = own_run(log, grace_us=grace_us, only_after=only_after)
    done = run.clean_up()
    end_run(run)
    return RemovedFiles(CommittedChange(run.number, run.number, through), len(done.records), done.objects)


def _listed(result: CleanupResult, sizes: dict[str, int], *, min_epoch: int) -> list[Garbage]:
    paths = [(path, _reason(path, min_epoch)) for path in result.paths]
    paths += [(names.record(number), Reason.RECORD) for number in result.records]
    return [Garbage(path, sizes.get(path, 0), reason) for path, reason in paths]


def _reason(path: str, min_epoch: int) -> Reason:
    epoch = names.epoch_of(path)
    return Reason.EPOCH if epoch is not None and epoch < min_epoch else Reason.NEVER_NAMED


def _check_readable(log: CheckpointLog, damaged: frozenset[int], records: list[pb.CheckpointMetadata]) -> None:
    kept = sorted(number for number in damaged if number >= records[-1].min_epoch)
    if kept:
        raise CleanupError(
            f"nothing can be removed: the records {kept} are retained but cannot be read",
            where=f"job {log.job_id}, {log.store.url}",
            fix="see `statebed verify`; clean-up resumes on its own once these records expire",
        )
