"""Sizes in bytes of an epoch's folder and of the state of an epoch."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from statebed.checkpoint.log import CheckpointLog
from statebed.checkpoint.objects import fetch_subtask
from statebed.errors import MissingFileError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names

READS_AT_ONCE = 16
"""Number of small objects fetched concurrently: over a network, one takes tens of milliseconds."""


def size_of_folder(log: CheckpointLog, epoch: int) -> int:
    return sum(info.size for info in log.store.list(names.epoch_folder(epoch)))


def sizes_of_folders(log: CheckpointLog, epochs: Sequence[int]) -> dict[int, int]:
    """Return the sizes of the folders of several epochs, read concurrently."""
    with ThreadPoolExecutor(READS_AT_ONCE, thread_name_prefix="statebed-list") as pool:
        return dict(zip(epochs, pool.map(lambda epoch: size_of_folder(log, epoch), epochs), strict=True))


def subtasks_of(log: CheckpointLog, operator: pb.OperatorEntry) -> list[pb.OperatorCheckpointMetadata]:
    """Read the metadata of an operator's subtasks named by its record."""
    with ThreadPoolExecutor(READS_AT_ONCE, thread_name_prefix="statebed-metadata") as pool:
        return list(pool.map(lambda reference: fetch_subtask(log.store, reference), operator.subtasks))


def state_bytes(log: CheckpointLog, record: pb.CheckpointMetadata) -> int | None:
    """Return the bytes of the data files of the epoch's state, or None if clean-up is removing them."""
    if record.HasField("figures") and record.figures.operators:
        return sum(table.store_bytes for operator in record.figures.operators for table in operator.tables)
    try:
        subtasks = [metadata for operator in record.operators for metadata in subtasks_of(log, operator)]
    except MissingFileError:
        return None
    # After a rescale two subtasks may list the same file; count it once.
    files = {
        file.path: file.size
        for metadata in subtasks
        for table in metadata.tables.values()
        for subtask in table.subtasks.values()
        for file in subtask.files
    }
    return sum(files.values())
