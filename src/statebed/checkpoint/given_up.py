"""Epochs whose rows a sink did not get, because the user gave them up at a start.

Their markers say so, and the next record counts them in the history of the sink. Between the two, the markers are read.
"""

from collections.abc import Iterable

from statebed.errors import FormatError, ObjectMissingError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.sealed import open_sealed
from statebed.protocol.sink_history import GivenUpEpochs, output_files
from statebed.storage import ObjectStore


def is_given_up(store: ObjectStore, epoch: int, sink_id: str) -> bool:
    """Return whether a marker says that the sink has the epoch without its rows. A damaged marker does not."""
    path = names.published(epoch, sink_id)
    try:
        return bool(open_sealed(pb.PublishedMarker, store.get(path), where=f"{store.url}/{path}").given_up)
    except (FormatError, ObjectMissingError):
        return False


def given_up_since(
    store: ObjectStore, head: pb.CheckpointMetadata, epochs: Iterable[pb.CheckpointMetadata]
) -> dict[str, GivenUpEpochs]:
    """Return, by sink, those of `epochs` that were given up after the record `head` was written."""
    published = {history.sink_id: history.published for history in head.sink_histories}
    given_up: dict[str, GivenUpEpochs] = {}
    for record in epochs:
        for entry in record.sinks:
            if record.epoch > published.get(entry.sink_id, 0) and is_given_up(store, record.epoch, entry.sink_id):
                rows = sum(file.rows for file in output_files(record, entry.operator_id, entry.stream))
                given_up.setdefault(entry.sink_id, GivenUpEpochs()).add(record.epoch, rows)
    return given_up
