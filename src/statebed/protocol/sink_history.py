"""Sink histories in records: identity, target, newest output and newest published epoch, carried along a lineage.

A sink's own position only shows what the target holds. Whether epochs are missing there is decided by comparing it with
this history, which outlives the records of the epochs: retention drops those, and most sinks do not advance their
position for an epoch without rows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from statebed.format import checkpoint_pb2 as pb

MAX_ABSENT = 100
"""Maximum number of histories of sinks that the job no longer has; those removed first are dropped."""


@dataclass(frozen=True)
class SinkIdentity:
    """Identity of a sink, as reported by the sink."""

    kind: str = ""
    """"parquet", "sqlite", ...; empty for a user-defined sink."""
    target: str = ""
    """Target of the sink, normalised and without secrets; empty if unknown."""
    keeps_position: bool = False
    """Whether the sink stores run and epoch in its target, so that a missing position means a missing target."""


@dataclass(frozen=True)
class AcceptedLoss:
    """Epochs that the user gave up: a target at epoch `held` does not need those up to `until`."""

    held: int
    until: int
    choice: str = ""
    """The choice at the start, such as "accept_gap"; empty: nothing was lost."""


@dataclass
class GivenUpEpochs:
    """Epochs whose rows a sink did not get, at the user's request, since the newest record."""

    epochs: int = 0
    rows: int = 0
    last: int = 0
    anew: bool = False
    """Whether the sink was rebuilt, so that what it lacked before no longer counts."""

    def add(self, epoch: int, rows: int) -> None:
        self.epochs, self.rows, self.last = self.epochs + 1, self.rows + rows, max(self.last, epoch)


def output_files(record: pb.CheckpointMetadata, operator_id: str, stream: str) -> list[pb.OutboxFile]:
    """Return the epoch's files for a sink of this stream; a sink that names no operator gets those of all."""
    return [file for file in record.outbox if file.stream == stream and operator_id in {"", file.operator_id}]


def has_rows(record: pb.CheckpointMetadata, operator_id: str, stream: str) -> bool:
    """Return whether the epoch has output files for a sink of this stream."""
    return bool(output_files(record, operator_id, stream))


def mentions(record: pb.CheckpointMetadata, sink_id: str) -> bool:
    """Return whether the record has a sink or a sink history called `sink_id`."""
    known = {history.sink_id for history in record.sink_histories} | {entry.sink_id for entry in record.sinks}
    return sink_id in known


def history_of(histories: Iterable[pb.SinkHistory], sink_id: str) -> pb.SinkHistory | None:
    """Return the history of a sink, or None."""
    return next((history for history in histories if history.sink_id == sink_id), None)


def histories_after(record: pb.CheckpointMetadata) -> list[pb.SinkHistory]:
    """Return the histories of `record`, updated with its own output, as the next record carries them.

    Records of older versions have sinks without histories: theirs start here.
    """
    known = {history.sink_id for history in record.sink_histories}
    histories = [
        *record.sink_histories,
        *(
            pb.SinkHistory(sink_id=entry.sink_id, operator_id=entry.operator_id, stream=entry.stream)
            for entry in record.sinks
            if entry.sink_id not in known
        ),
    ]
    entries = {entry.sink_id: entry for entry in record.sinks}
    carried = []
    for before in histories:
        history = pb.SinkHistory()
        history.CopyFrom(before)
        entry = entries.get(before.sink_id)
        if record.kind == pb.EPOCH and entry is not None and has_rows(record, entry.operator_id, entry.stream):
            history.last_output = record.epoch
        carried.append(history)
    return carried


def next_histories(
    head: pb.CheckpointMetadata,
    sinks: Sequence[pb.SinkEntry],
    *,
    epoch: int,
    identities: Mapping[str, SinkIdentity],
    published: Mapping[str, int],
    accepted: Mapping[str, AcceptedLoss],
    given_up: Mapping[str, GivenUpEpochs],
) -> list[pb.SinkHistory]:
    """Return the histories of the record of `epoch`, which follows `head` and is published to `sinks`.

    A record without sinks only carries the state over, so no sink becomes absent because of it.
    """
    histories = {history.sink_id: history for history in histories_after(head)}
    entries = {entry.sink_id: entry for entry in sinks}
    for sink_id, entry in entries.items():
        history = histories.setdefault(sink_id, pb.SinkHistory(sink_id=sink_id))
        history.operator_id, history.stream, history.absent_since = entry.operator_id, entry.stream, 0
        if (identity := identities.get(sink_id)) is not None:
            history.kind, history.target = identity.kind, identity.target
            history.keeps_position = identity.keeps_position
    for sink_id, history in histories.items():
        history.published = max(published.get(sink_id, 0), history.published)
        if (loss := accepted.get(sink_id)) is not None:
            history.accepted_from, history.accepted, history.accepted_choice = loss.held, loss.until, loss.choice
        if (left_out := given_up.get(sink_id)) is not None:
            if left_out.anew:
                history.epochs_given_up, history.rows_given_up, history.last_given_up = 0, 0, 0
            history.epochs_given_up += left_out.epochs
            history.rows_given_up += left_out.rows
            history.last_given_up = max(left_out.last, history.last_given_up)
        if entries and sink_id not in entries and not history.absent_since:
            history.absent_since = epoch
    left = sorted((h for h in histories.values() if h.absent_since), key=lambda history: history.absent_since)
    forgotten = {history.sink_id for history in left[:-MAX_ABSENT]}
    return [history for sink_id, history in sorted(histories.items()) if sink_id not in forgotten]
