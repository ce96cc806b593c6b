"""How many bytes: of an epoch's folder, of the state that an epoch shows."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from statebed.checkpoint.log import CheckpointLog
from statebed.checkpoint.objects import fetch_subtask
from statebed.errors import MissingFileError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names

READS_AT_ONCE = 16
"""Small objects are fetched side by side: over a network one takes tens of milliseconds."""


def size_of_folder(log: CheckpointLog, epoch: int) -> int:
    return sum(info.size for info in log.store.list(names.epoch_folder(epoch)))


def sizes_of_folders(log: CheckpointLog, epochs: Sequence[int]) -> dict[int, int]:
    """The same for several epochs at once."""
    with ThreadPoolExecutor(READS_AT_ONCE, thread_name_prefix="statebed-list") as pool:
        return dict(zip(epochs, pool.map(lambda epoch: size_of_folder(log, epoch), epochs), strict=True))


def subtasks_of(log: CheckpointLog, operator: pb.OperatorEntry) -> list[pb.OperatorCheckpointMetadata]:
    """The metadata of an operator's subtasks, as its record names them."""
    with ThreadPoolExecutor(READS_AT_ONCE, thread_name_prefix="statebed-metadata") as pool:
        return list(pool.map(lambda reference: fetch_subtask(log.store, reference), operator.subtasks))


def state_bytes(log: CheckpointLog, record: pb.CheckpointMetadata) -> int | None:
    """Bytes of the data files that the epoch's state consists of; None when they are being collected."""
    if record.HasField("figures") and record.figures.operators:
        return sum(table.store_bytes for operator in record.figures.operators for table in operator.tables)
    try:
        subtasks = [metadata for operator in record.operators for metadata in subtasks_of(log, operator)]
    except MissingFileError:
        return None
    # After a rescale two subtasks may list one file: it is counted once.
    files = {
        file.path: file.size
        for metadata in subtasks
        for table in metadata.tables.values()
        for subtask in table.subtasks.values()
        for file in subtask.files
    }
    return sum(files.values())
