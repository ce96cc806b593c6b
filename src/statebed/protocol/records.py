"""How records are made: each is complete in itself and follows from the one before it.

A record names everything that its epoch consists of, so reading one never needs another. `previous` is always the
number before; `base` is the data epoch whose state it builds on (never a run_start, which has no state of its own).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from statebed.arrays.key_hash import HASH_NAME, HASH_VERSION
from statebed.format import checkpoint_pb2 as pb
from statebed.protocol.sink_history import AcceptedLoss, SinkIdentity, histories_after, next_histories


@dataclass(frozen=True)
class EpochDraft:
    """What an epoch consists of, before it has a place in the log."""

    operators: Sequence[pb.OperatorEntry]
    source_position: pb.SourcePosition = field(default_factory=pb.SourcePosition)
    outbox: Sequence[pb.OutboxFile] = ()
    sinks: Sequence[pb.SinkEntry] = ()
    sources: Sequence[pb.SourceWatermark] = ()
    epoch_time_us: int = 0
    start_time_us: int = 0
    parallelism: int = 1
    chosen_parallelism: int | None = None
    """For later runs that set none themselves; None: as before."""
    status: pb.RecordStatus.ValueType = pb.COMPLETE
    """COMPLETE becomes STOPPED in the record if every operator was checkpointed with `then_stop`."""
    figures: pb.EpochFigures | None = None
    """What it took, as far as that was measured."""


@dataclass(frozen=True)
class Commit:
    """What only this attempt at a commit knows: its nonce, its time, who writes, which requests it grants."""

    nonce: str
    now_us: int
    written_by: str
    granted_requests: Sequence[str] = ()


def data_epoch_of(record: pb.CheckpointMetadata) -> int:
    """The epoch whose state the record shows: its own, or for a run_start its base's."""
    return record.epoch if record.kind == pb.EPOCH else record.base


def lineage_name(run: int) -> str:
    return f"{run:012d}"


def build_run_start(
    *,
    job_id: str,
    number: int,
    head: pb.CheckpointMetadata | None,
    base: pb.CheckpointMetadata | None,
    fork: bool,
    commit: Commit,
    min_epoch: int = 1,
    rollback_allowed: bool = False,
) -> pb.CheckpointMetadata:
    """The record that opens run `number` on the state of `base`; `head` gives what belongs to the log itself.

    `rollback_allowed`: sinks may take back what they have of epochs that are not of this lineage. Until a run has
    committed an epoch, which it does after asking the sinks, those that follow it may do so, too.
    """
    record = pb.CheckpointMetadata(
        job_id=job_id,
        epoch=number,
        kind=pb.RUN_START,
        previous=number - 1,
        base=data_epoch_of(base) if base else 0,
        lineage=head.lineage if head and not fork else lineage_name(number),
        run=number,
        nonce=commit.nonce,
        start_time_us=commit.now_us,
        finish_time_us=commit.now_us,
        status=pb.COMPLETE,
        min_epoch=max(min_epoch, head.min_epoch if head else 1),
        pins=head.pins if head else (),
        hash_name=HASH_NAME,
        hash_version=HASH_VERSION,
        written_by=commit.written_by,
        rollback_allowed=rollback_allowed or (head is not None and head.rollback_allowed),
    )
    if base:
        record.epoch_time_us = base.epoch_time_us
        record.parallelism = base.parallelism
        record.chosen_parallelism = base.chosen_parallelism
        record.operators.extend(base.operators)
        record.source_position.CopyFrom(base.source_position)
        record.sources.extend(base.sources)
        record.sink_histories.extend(histories_after(base))
    return record


def build_epoch(
    *,
    head: pb.CheckpointMetadata,
    draft: EpochDraft,
    min_epoch: int,
    pins: Sequence[pb.Pin],
    commit: Commit,
    identities: Mapping[str, SinkIdentity] = MappingProxyType({}),
    published: Mapping[str, int] = MappingProxyType({}),
    accepted: Mapping[str, AcceptedLoss] = MappingProxyType({}),
) -> pb.CheckpointMetadata:
    """Build the record of the epoch that follows `head` in the same run.

    By sink, `identities` say what it is, `published` which epoch it has, and `accepted` what the user gave up.
    """
    return pb.CheckpointMetadata(
        job_id=head.job_id,
        epoch=head.epoch + 1,
        kind=pb.EPOCH,
        previous=head.epoch,
        base=data_epoch_of(head),
        lineage=head.lineage,
        run=head.run,
        nonce=commit.nonce,
        # A clock that was set back meanwhile would end the epoch before it began.
        start_time_us=min(draft.start_time_us or commit.now_us, commit.now_us),
        finish_time_us=commit.now_us,
        status=_status_of(draft),
        min_epoch=min_epoch,
        pins=pins,
        epoch_time_us=draft.epoch_time_us,
        hash_name=HASH_NAME,
        hash_version=HASH_VERSION,
        parallelism=draft.parallelism,
        chosen_parallelism=head.chosen_parallelism if draft.chosen_parallelism is None else draft.chosen_parallelism,
        operators=draft.operators,
        source_position=draft.source_position,
        outbox=draft.outbox,
        sinks=draft.sinks,
        sources=draft.sources,
        written_by=commit.written_by,
        granted_requests=commit.granted_requests,
        figures=draft.figures,
        sink_histories=next_histories(
            head, draft.sinks, epoch=head.epoch + 1, identities=identities, published=published, accepted=accepted
        ),
    )


def _status_of(draft: EpochDraft) -> pb.RecordStatus.ValueType:
    working = [entry for entry in draft.operators if not entry.retired]
    stops = bool(working) and all(entry.then_stop for entry in working)
    return pb.STOPPED if stops and draft.status == pb.COMPLETE else draft.status
