"""Builders of records. Each record is self-contained and follows from the one before it.

A record refers to everything its epoch consists of, so reading one never requires another. `previous` is always the
preceding number. `base` is the data epoch whose state it builds on, never a run_start, which has no state itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from statebed.arrays.key_hash import HASH_NAME, HASH_VERSION
from statebed.format import checkpoint_pb2 as pb
from statebed.protocol.sink_history import AcceptedLoss, GivenUpEpochs, SinkIdentity, histories_after, next_histories


@dataclass(frozen=True)
class EpochDraft:
    """Contents of an epoch before it has a number in the log."""

    operators: Sequence[pb.OperatorEntry]
    source_position: pb.SourcePosition = field(default_factory=pb.SourcePosition)
    outbox: Sequence[pb.OutboxFile] = ()
    sinks: Sequence[pb.SinkEntry] = ()
    sources: Sequence[pb.SourceWatermark] = ()
    epoch_time_us: int = 0
    start_time_us: int = 0
    parallelism: int = 1
    chosen_parallelism: int | None = None
    """Default parallelism of later runs that do not set one, or None to keep the previous default."""
    status: pb.RecordStatus.ValueType = pb.COMPLETE
    """COMPLETE becomes STOPPED in the record if every operator was checkpointed with `then_stop`."""
    figures: pb.EpochFigures | None = None
    """Measurements of the epoch, if any."""


@dataclass(frozen=True)
class Commit:
    """Data of one attempt to commit: its nonce, its time, its writer and the requests it grants."""

    nonce: str
    now_us: int
    written_by: str
    granted_requests: Sequence[str] = ()


def data_epoch_of(record: pb.CheckpointMetadata) -> int:
    """Return the epoch whose state the record shows: its own, or the base's for a run_start."""
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
    """Build the record that opens run `number` on the state of `base`; `head` provides what belongs to the log itself.

    With `rollback_allowed`, sinks may retract epochs that are not part of this lineage. The permission lasts until a
    run has committed an epoch, which it does only after opening its sinks, so later runs inherit it until then.
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
    given_up: Mapping[str, GivenUpEpochs] = MappingProxyType({}),
) -> pb.CheckpointMetadata:
    """Build the record of the epoch that follows `head` in the same run.

    The mappings are by sink: `identities` describe it, `published` is the newest epoch it has, and `accepted` is what
    the user gave up.
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
        # The clock may have been set back since the epoch started; it must not end before it starts.
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
            head,
            draft.sinks,
            epoch=head.epoch + 1,
            identities=identities,
            published=published,
            accepted=accepted,
            given_up=given_up,
        ),
    )


def _status_of(draft: EpochDraft) -> pb.RecordStatus.ValueType:
    working = [entry for entry in draft.operators if not entry.retired]
    stops = bool(working) and all(entry.then_stop for entry in working)
    return pb.STOPPED if stops and draft.status == pb.COMPLETE else draft.status
