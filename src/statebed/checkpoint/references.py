"""References of a record: the objects it refers to, directly or through the metadata of its subtasks.

Objects never change, so the references of a metadata object are cached by its path, as long as a record in use refers
to it.
"""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from statebed.checkpoint.log import CheckpointLog
from statebed.checkpoint.objects import fetch_subtask
from statebed.errors import FormatError, MissingFileError, StorageError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names


@dataclass(frozen=True)
class ReferencedObjects:
    """Sizes of all objects that a record refers to, by path; `metadata` are those that refer to others."""

    sizes: dict[str, int]
    metadata: frozenset[str]


class References:
    """Resolves the references of records. One per run, not thread-safe."""

    def __init__(self, log: CheckpointLog) -> None:
        self._log = log
        self._files: dict[str, dict[str, int]] = {}

    def of(self, record: pb.CheckpointMetadata, *, interrupted: bool = False) -> ReferencedObjects:
        """Return everything that the record refers to, except itself and its savepoints.

        With `interrupted`, its clean-up may have started, so missing metadata is ignored.
        """
        sizes = _named_directly(record)
        metadata: set[str] = set()
        for reference in _subtasks(record):
            metadata.add(reference.path)
            sizes[reference.path] = reference.size
            try:
                sizes.update(self._files_of(reference))
            except MissingFileError:
                if not interrupted:  # metadata is deleted after its files, so none are left
                    raise
        return ReferencedObjects(sizes, frozenset(metadata))

    def prefetch(self, records: Iterable[pb.CheckpointMetadata]) -> None:
        """Read the metadata that `of` will need, concurrently. Errors are left for `of` to raise."""
        wanted = {ref.path: ref for record in records for ref in _subtasks(record) if ref.path not in self._files}
        at_once = min(self._log.environment.requests_at_once, len(wanted))
        if at_once <= 1:
            return

        def read(reference: pb.SubtaskReference) -> tuple[str, dict[str, int] | None]:
            try:
                return reference.path, self._read(reference)
            except (FormatError, StorageError):
                return reference.path, None

        with ThreadPoolExecutor(at_once, thread_name_prefix="statebed-metadata") as pool:
            files_by_path = dict(pool.map(read, wanted.values()))
        self._files.update({path: files for path, files in files_by_path.items() if files is not None})

    def keep_only(self, records: Iterable[pb.CheckpointMetadata]) -> None:
        """Evict cached metadata that no record in use refers to."""
        used = {reference.path for record in records for reference in _subtasks(record)}
        self._files = {path: files for path, files in self._files.items() if path in used}

    def _files_of(self, reference: pb.SubtaskReference) -> dict[str, int]:
        if reference.path not in self._files:
            self._files[reference.path] = self._read(reference)
        return self._files[reference.path]

    def _read(self, reference: pb.SubtaskReference) -> dict[str, int]:
        metadata = fetch_subtask(self._log.store, reference)
        return {
            file.path: file.size
            for table in metadata.tables.values()
            for subtask in table.subtasks.values()
            for file in subtask.files
        }


def _subtasks(record: pb.CheckpointMetadata) -> Iterable[pb.SubtaskReference]:
    return (reference for operator in record.operators for reference in operator.subtasks)


def _named_directly(record: pb.CheckpointMetadata) -> dict[str, int]:
    sizes = {file.path: file.size for file in record.outbox}
    sizes.update({log.path: log.size for log in record.source_position.source_logs})
    return sizes


def markers_of(record: pb.CheckpointMetadata) -> set[str]:
    """Return the paths of a record's published markers, one per sink."""
    return {names.published(record.epoch, sink.sink_id) for sink in record.sinks}
