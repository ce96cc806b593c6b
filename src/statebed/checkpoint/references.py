"""What a record names, resolved through the metadata of its subtasks.

Objects never change, so what a metadata object names is remembered by its path, for as long as some record in use
refers to it.
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
class Named:
    """Sizes of every object that a record names, by path; `metadata` are those that name others."""

    sizes: dict[str, int]
    metadata: frozenset[str]


class References:
    """Resolves records; one per run, not thread-safe."""

    def __init__(self, log: CheckpointLog) -> None:
        self._log = log
        self._files: dict[str, dict[str, int]] = {}

    def of(self, record: pb.CheckpointMetadata, *, interrupted: bool = False) -> Named:
        """Everything that the record names, itself and its savepoints apart.

        `interrupted`: its collection may have begun, so metadata that is gone already is passed over.
        """
        sizes = _named_directly(record)
        metadata: set[str] = set()
        for reference in _subtasks(record):
            metadata.add(reference.path)
            sizes[reference.path] = reference.size
            try:
                sizes.update(self._files_of(reference))
            except MissingFileError:
                if not interrupted:  # metadata leaves after its files: there are none left
                    raise
        return Named(sizes, frozenset(metadata))

    def prefetch(self, records: Iterable[pb.CheckpointMetadata]) -> None:
        """Read the metadata that `of` will need, several objects at a time; what cannot be read is left to `of`."""
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
            found = dict(pool.map(read, wanted.values()))
        self._files.update({path: files for path, files in found.items() if files is not None})

    def keep_only(self, records: Iterable[pb.CheckpointMetadata]) -> None:
        """Forget what no record in use refers to."""
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
    """The markers that belong to a record: one per sink that it is to be published to."""
    return {names.published(record.epoch, sink.sink_id) for sink in record.sinks}
