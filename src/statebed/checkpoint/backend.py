"""Records and operator metadata by job and epoch, for programs that coordinate checkpoints themselves.

`BackingStore` declares the six operations, `ParquetBackend` implements them, and `StateBackend` is its public name.
Each operation is one call of the functions that runs, managers and tools use. To store state elsewhere, implement an
`ObjectStore`: that is the extension point ([decision
0041](../../../docs/decisions/0041-the-object-store-is-the-seam.md)).
"""

from typing import Protocol

from statebed.checkpoint.cleanup import Cleaner, CleanupResult
from statebed.checkpoint.environment import Environment
from statebed.checkpoint.log import CheckpointLog
from statebed.checkpoint.objects import check_bytes, fetch_subtask, store_subtask
from statebed.checkpoint.open_run import check_intact
from statebed.checkpoint.references import References
from statebed.errors import BrokenLogError, CleanupError, InputError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.protocol.base_choice import LogSlot
from statebed.protocol.commit import check_nonce, fenced
from statebed.storage import ObjectStore, ScopedStore


class BackingStore(Protocol):
    """Operations of a state backend."""

    def prepare_checkpoint_load(self, metadata: pb.CheckpointMetadata) -> None:
        """Check that everything the record refers to exists and is intact, before anything is loaded.

        Reads every byte: sizes and checksums of metadata, data files, output and source logs are compared.
        """

    def load_checkpoint_metadata(self, job_id: str, epoch: int) -> pb.CheckpointMetadata:
        """Return the record of an epoch."""

    def load_operator_metadata(self, job_id: str, operator_id: str, epoch: int) -> pb.OperatorCheckpointMetadata | None:
        """Return the combined metadata of an operator's subtasks at an epoch, or None if the record lacks it."""

    def write_operator_checkpoint_metadata(self, metadata: pb.OperatorCheckpointMetadata) -> pb.SubtaskReference:
        """Store the metadata of one subtask durably, and return the reference that the record must contain."""

    def write_checkpoint_metadata(self, metadata: pb.CheckpointMetadata) -> None:
        """Commit the record; raise FencedError if its number is taken."""

    def cleanup_checkpoint(self, metadata: pb.CheckpointMetadata, old_min_epoch: int, new_min_epoch: int) -> None:
        """Delete what the committed record allows: everything below its min_epoch, oldest first.

        `old_min_epoch` is where the previous clean-up ended. Anything that an interrupted clean-up left below it is
        deleted too.
        """

    @staticmethod
    def name() -> str:
        """Return the name of this backend."""


class ParquetBackend:
    """Backend with Parquet data and protobuf metadata, on any store with put-if-absent."""

    def __init__(self, store: ObjectStore, environment: Environment | None = None, *, reader_grace_us: int = 0) -> None:
        """Use `store`, the root of the state location; jobs are folders in it."""
        self._store = store
        self._environment = environment or Environment()
        self._reader_grace_us = reader_grace_us

    def prepare_checkpoint_load(self, metadata: pb.CheckpointMetadata) -> None:
        log = self._log(metadata.job_id)
        check_intact(log, References(log), metadata)  # cheap, and finds missing and truncated objects
        check_bytes(log.store, _named_files(log.store, metadata))

    def load_checkpoint_metadata(self, job_id: str, epoch: int) -> pb.CheckpointMetadata:
        return self._log(job_id).read(epoch)

    def load_operator_metadata(self, job_id: str, operator_id: str, epoch: int) -> pb.OperatorCheckpointMetadata | None:
        log = self._log(job_id)
        for operator in log.read(epoch).operators:
            if operator.operator_id == operator_id:
                parts = [fetch_subtask(log.store, reference) for reference in operator.subtasks]
                return _unite(operator, parts, job_id=job_id, epoch=epoch)
        return None

    def write_operator_checkpoint_metadata(self, metadata: pb.OperatorCheckpointMetadata) -> pb.SubtaskReference:
        return store_subtask(self._log(metadata.job_id).store, metadata)

    def write_checkpoint_metadata(self, metadata: pb.CheckpointMetadata) -> None:
        log = self._log(metadata.job_id)
        check_nonce(metadata)
        if metadata.epoch > 1 and not log.exists(metadata.epoch - 1):
            raise BrokenLogError(
                f"record {metadata.epoch} cannot be written: there is no record {metadata.epoch - 1}",
                where=f"job {metadata.job_id}",
                fix="use the number after the head; if record and head were cleaned up, a newer run owns the job",
            )
        other = log.append(metadata)
        if other is not None:
            raise fenced(metadata.epoch, run=metadata.run, by=other)

    def cleanup_checkpoint(self, metadata: pb.CheckpointMetadata, old_min_epoch: int, new_min_epoch: int) -> None:
        log = self._log(metadata.job_id)
        if old_min_epoch > new_min_epoch:
            raise InputError(
                f"min_epoch must not decrease from {old_min_epoch} to {new_min_epoch}",
                fix="pass the epoch where the last clean-up ended, then the one where this one is to end",
            )
        if log.read(metadata.epoch).min_epoch < new_min_epoch:
            raise CleanupError(
                f"record {metadata.epoch} allows deletion below epoch {metadata.min_epoch}, not below {new_min_epoch}",
                where=f"job {metadata.job_id}",
                fix="commit a record with the new min_epoch first: only a committed record permits deletion",
            )
        self._clean_up(log, metadata)

    @staticmethod
    def name() -> str:
        return "parquet"

    def _clean_up(self, log: CheckpointLog, metadata: pb.CheckpointMetadata) -> CleanupResult:
        # All records, not only those from old_min_epoch on: records must be deleted in ascending order.
        seen = [log.observe(number) for number in log.numbers() if number <= metadata.epoch]
        damaged = [observation.epoch for observation in seen if observation.slot is LogSlot.DAMAGE]
        if damaged:
            raise CleanupError(
                f"nothing was deleted: the records {damaged} cannot be read",
                where=f"job {metadata.job_id}",
                fix="repair them first, or let a run clean up once they are no longer retained",
            )
        records = [observation.record for observation in seen if observation.record is not None]
        return Cleaner(log, References(log)).clean_up(records, grace_us=self._reader_grace_us, sweep=False)

    def _log(self, job_id: str) -> CheckpointLog:
        return CheckpointLog(ScopedStore(self._store, names.job_folder(job_id)), job_id, self._environment)


StateBackend = ParquetBackend


def _named_files(store: ObjectStore, record: pb.CheckpointMetadata) -> set[tuple[str, int, int]]:
    """Return path, size and checksum of each file that the record refers to, directly or through its subtasks."""
    references = [reference for operator in record.operators for reference in operator.subtasks]
    data = [
        file
        for reference in references
        for table in fetch_subtask(store, reference).tables.values()
        for subtask in table.subtasks.values()
        for file in subtask.files
    ]
    named = {(file.path, file.size, file.crc32c) for file in data}
    named |= {(file.path, file.size, file.crc32c) for file in record.outbox}
    return named | {(log.path, log.size, log.crc32c) for log in record.source_position.source_logs}


def _unite(
    operator: pb.OperatorEntry, parts: list[pb.OperatorCheckpointMetadata], *, job_id: str, epoch: int
) -> pb.OperatorCheckpointMetadata:
    whole = pb.OperatorCheckpointMetadata(
        job_id=job_id, operator_id=operator.operator_id, epoch=epoch, parallelism=operator.parallelism
    )
    if operator.HasField("output_watermark_us"):
        whole.watermark_us = operator.output_watermark_us
    for part in parts:
        for name, table in part.tables.items():
            united = whole.tables[name]
            united.config.CopyFrom(table.config)
            for index, subtask in table.subtasks.items():
                united.subtasks[index].CopyFrom(subtask)
    return whole
