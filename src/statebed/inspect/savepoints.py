"""Savepoints of a job, as pinned by its newest record."""

from dataclasses import dataclass

from statebed.checkpoint.log import CheckpointLog
from statebed.errors import SavepointError, StatebedError
from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.records import slowest_watermark
from statebed.inspect.sizes import state_bytes


@dataclass(frozen=True)
class SavepointSummary:
    """One savepoint: an epoch that is retained until the savepoint is dropped."""

    savepoint: str
    epoch: int
    lineage: str
    finish_time_us: int | None
    """Finish time of the pinned epoch."""
    watermark_us: int | None
    bytes: int | None
    """Bytes of the data files of its state; some may be shared with other epochs."""
    problem: str = ""


def summarise_savepoints(log: CheckpointLog, head: pb.CheckpointMetadata | None) -> list[SavepointSummary]:
    """Return every savepoint that `head` pins, sorted by epoch. One that cannot be read does not hide the others."""
    pins = head.pins if head else ()
    return [_savepoint(log, pin) for pin in sorted(pins, key=lambda pin: (pin.epoch, pin.savepoint))]


def savepoint_record(log: CheckpointLog, head: pb.CheckpointMetadata | None, name: str) -> pb.CheckpointMetadata:
    """Return the record that the savepoint pins. Raise SavepointError with the existing names if there is none."""
    pins = {pin.savepoint: pin for pin in head.pins} if head else {}
    if name not in pins:
        raise SavepointError(
            f"there is no savepoint {name!r} (savepoints here: {', '.join(sorted(pins)) or 'none'})",
            where=log.store.url,
            fix="`statebed ls STATE JOB --savepoints` lists them",
        )
    return log.savepoint(pins[name])


def _savepoint(log: CheckpointLog, pin: pb.Pin) -> SavepointSummary:
    try:
        record = log.savepoint(pin)
        held = state_bytes(log, record)
    except StatebedError as error:
        return SavepointSummary(pin.savepoint, pin.epoch, "", None, None, None, problem=error.what)
    return SavepointSummary(
        savepoint=pin.savepoint,
        epoch=pin.epoch,
        lineage=record.lineage,
        finish_time_us=record.finish_time_us,
        watermark_us=slowest_watermark(record),
        bytes=held,
    )
