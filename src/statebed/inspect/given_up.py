"""Rows that sinks did not get at the user's request, over the whole life of a job."""

from collections.abc import Iterator

from statebed.checkpoint.given_up import given_up_since
from statebed.checkpoint.log import CheckpointLog
from statebed.errors import StatebedError
from statebed.format import checkpoint_pb2 as pb
from statebed.protocol.sink_history import GivenUpEpochs


def given_up_rows(log: CheckpointLog, record: pb.CheckpointMetadata) -> dict[str, GivenUpEpochs]:
    """Return, by sink, the epochs whose rows were given up until now, as seen from the newest record."""
    recent = given_up_since(log.store, record, _recent(log, record))
    totals = {
        history.sink_id: GivenUpEpochs(history.epochs_given_up, history.rows_given_up, history.last_given_up)
        for history in record.sink_histories
        if history.epochs_given_up
    }
    for sink, more in recent.items():
        before = totals.get(sink, GivenUpEpochs())
        totals[sink] = GivenUpEpochs(before.epochs + more.epochs, before.rows + more.rows, max(before.last, more.last))
    return dict(sorted(totals.items()))


def given_up_lines(log: CheckpointLog, record: pb.CheckpointMetadata) -> list[str]:
    """Describe the rows that each sink did not get."""
    gaps = [
        f"sink {history.sink_id} lacks output of epochs {history.accepted_from + 1} to {history.accepted}, which was "
        f"given up with {history.accepted_choice!r}"
        for history in record.sink_histories
        if history.accepted_choice and history.accepted > history.accepted_from and not history.absent_since
    ]
    return [*gaps, *(given_up_line(sink, rows) for sink, rows in given_up_rows(log, record).items())]


def given_up_line(sink: str, given_up: GivenUpEpochs) -> str:
    """Describe the rows that a sink did not get.

    >>> given_up_line("minutes", GivenUpEpochs(epochs=2, rows=120, last=17))
    'sink minutes lacks 120 rows of 2 epochs (the newest: 17), which were given up with skip='
    """
    several = f"{given_up.epochs} epochs (the newest: {given_up.last})"
    epochs = several if given_up.epochs > 1 else f"epoch {given_up.last}"
    return f"sink {sink} lacks {given_up.rows:,} rows of {epochs}, which were given up with skip="


def _recent(log: CheckpointLog, record: pb.CheckpointMetadata) -> Iterator[pb.CheckpointMetadata]:
    """Yield the epochs that the histories of the record may not count yet, newest first.

    Rows are given up when a run starts, before its first epoch, whose record counts them.
    """
    if record.kind == pb.EPOCH:
        return
    counted = min((history.published for history in record.sink_histories if not history.absent_since), default=0)
    while record.epoch > counted:
        if record.kind == pb.EPOCH:
            yield record
        if not record.base or record.base < record.min_epoch:
            return
        try:
            record = log.read(record.base)
        except StatebedError:
            return  # cleaned up or damaged
