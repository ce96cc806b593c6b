"""Edits whose outputs are already in the store, made by a compaction that runs apart from the table.

A subtask on Spark ends with its epoch, so its files are compacted by separate work, on any machine, from a committed
epoch. The outputs are in the folder of the run's compactions. The edit is sent as bytes to the subtasks of a later
epoch, which apply it to the metadata that they are restored from. All of them make the same decision at any
parallelism: if every input is still listed as it was, the outputs replace it; otherwise the edit has no effect.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import msgspec

from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.state.compaction import Edit, distinct, staged
from statebed.state.live.files import clipped
from statebed.state.messages import TaskInfo
from statebed.state.upload import Upload

Put = Callable[[Upload], None]
Parts = Mapping[int, pb.OperatorCheckpointMetadata]
"""Metadata of an operator's subtasks, by subtask index."""


class _EditWire(msgspec.Struct, array_like=True, frozen=True):
    table: str
    inputs: list[bytes]
    remains: list[bytes]
    outputs: list[bytes]


@dataclass(frozen=True)
class StoredEdit:
    """Replaces inputs by their remains and the outputs, in one table of one subtask."""

    table: str
    inputs: tuple[pb.FileEntry, ...]
    remains: tuple[pb.FileEntry, ...]
    outputs: tuple[pb.FileEntry, ...]
    """Entries under their final names."""

    def to_bytes(self) -> bytes:
        return msgspec.msgpack.encode(
            _EditWire(self.table, _packed(self.inputs), _packed(self.remains), _packed(self.outputs))
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        wire = msgspec.msgpack.decode(data, type=_EditWire)
        return cls(wire.table, _unpacked(wire.inputs), _unpacked(wire.remains), _unpacked(wire.outputs))

    def applied_to(self, files: Iterable[pb.FileEntry], owned: pb.HashRange) -> tuple[pb.FileEntry, ...] | None:
        """Return the live files of the subtask that owns this range, or None if the edit does not or no longer apply to
        them.
        """
        edit = Edit(inputs=tuple(clipped(self.inputs, owned)), outputs=(), remains=tuple(clipped(self.remains, owned)))
        files = tuple(files)
        if not edit.inputs or not edit.applies_to(files):
            return None
        listed = {file.path for file in files}
        if any(output.path in listed for output in self.outputs):
            # Another compaction has written this path since. The next one sees that file and picks another name.
            return None
        return edit.applied_to(files, clipped(self.outputs, owned))


def stored_edits(
    merged: Sequence[tuple[str, Edit]], task: TaskInfo, *, run: int, put: Put, live: Mapping[str, Iterable[str]]
) -> tuple[StoredEdit, ...]:
    """Upload the outputs of compactions, by table, into the folder of the run's compactions and remove the local files.

    `live` holds the paths of each table's files, which no output may reuse.
    """
    try:
        return tuple(_stored(table, edit, task, run=run, put=put, live=live[table]) for table, edit in merged)
    except BaseException:
        for _, edit in merged:
            edit.discard()
        raise


def _stored(table: str, edit: Edit, task: TaskInfo, *, run: int, put: Put, live: Iterable[str]) -> StoredEdit:
    def name_of(digest: str) -> str:
        return names.compacted_file(run, task.operator_id, table, task.subtask_index, digest)

    outputs = []
    unused = distinct(name_of, live)
    for file in edit.outputs:
        entry, upload = staged(file, unused)
        put(upload)
        outputs.append(entry)
    return StoredEdit(table, edit.inputs, edit.remains, tuple(outputs))


def edited(parts: Parts, edits: Sequence[bytes]) -> tuple[dict[int, pb.OperatorCheckpointMetadata], int]:
    """Apply all edits that still apply to the metadata of subtasks; also return how many did."""
    result = dict(parts)
    applied = 0
    for edit in map(StoredEdit.from_bytes, edits):
        edited_parts = {
            index: changed for index, metadata in result.items() if (changed := _changed(metadata, edit)) is not None
        }
        result |= edited_parts
        applied += bool(edited_parts)
    return result, applied


def _changed(metadata: pb.OperatorCheckpointMetadata, edit: StoredEdit) -> pb.OperatorCheckpointMetadata | None:
    if edit.table not in metadata.tables:
        return None
    files_by_subtask = {
        index: files
        for index, part in metadata.tables[edit.table].subtasks.items()
        if (files := edit.applied_to(part.files, metadata.owned)) is not None
    }
    if not files_by_subtask:
        return None
    changed = pb.OperatorCheckpointMetadata()
    changed.CopyFrom(metadata)
    for index, files in files_by_subtask.items():
        part = changed.tables[edit.table].subtasks[index]
        del part.files[:]
        part.files.extend(files)
    return changed


def _packed(files: Iterable[pb.FileEntry]) -> list[bytes]:
    return [file.SerializeToString(deterministic=True) for file in files]


def _unpacked(files: Iterable[bytes]) -> tuple[pb.FileEntry, ...]:
    return tuple(pb.FileEntry.FromString(data) for data in files)
