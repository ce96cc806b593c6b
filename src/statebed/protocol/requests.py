"""Requests to the live run: what a tool may request, and what each request changes in the next record.

A request is granted or refused when it is read. A granted request takes effect with the next record, which lists its
id. Every request, even a refused one, is answered only after that record is committed, so a superseded run never
answers. A run that finds an unanswered request listed in the log answers it without performing it again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from statebed.errors import EpochNotRetainedError, ProtocolError, SavepointError
from statebed.format import checkpoint_pb2 as pb
from statebed.format.names import check_name
from statebed.protocol.records import data_epoch_of


@dataclass(frozen=True)
class AddSavepoint:
    """Pin `epoch` under a name."""

    name: str
    epoch: int


@dataclass(frozen=True)
class DropSavepoint:
    """Drop a pin from the next record."""

    name: str


@dataclass(frozen=True)
class Stop:
    """End the run with its next record; `drain` closes every window first."""

    drain: bool


@dataclass(frozen=True)
class CleanUp:
    """Clean up after the next record."""


@dataclass(frozen=True)
class Compact:
    """Compact files soon, even if compaction is not due."""


Effect = AddSavepoint | DropSavepoint | Stop | CleanUp | Compact


def decide_request(request: pb.Request, *, head: pb.CheckpointMetadata, waiting: Sequence[Effect] = ()) -> Effect:
    """Return the effect of a request; raise a typed error if it is refused.

    `waiting` are the effects already granted for the next record, so that requests read together do not conflict.
    """
    match request.WhichOneof("action"):
        case "savepoint":
            return _add_savepoint(request.savepoint, head, waiting)
        case "drop_savepoint":
            return _drop_savepoint(request.drop_savepoint.name, head, waiting)
        case "stop":
            return Stop(drain=request.stop.drain)
        case "cleanup":
            return CleanUp()
        case "compact":
            return Compact()
        case _:
            raise ProtocolError(
                "this run does not know the requested action",
                fix="upgrade the job to the tool's version of statebed",
            )


def _add_savepoint(wanted: pb.SavepointRequest, head: pb.CheckpointMetadata, waiting: Sequence[Effect]) -> Effect:
    name = check_name("savepoint", wanted.name)
    taken = {pin.savepoint for pin in head.pins} | {e.name for e in waiting if isinstance(e, AddSavepoint)}
    if name in taken:
        raise SavepointError(f"savepoint {name!r} already exists", fix="choose another name, or drop it first")
    epoch = wanted.epoch if wanted.HasField("epoch") else data_epoch_of(head)
    if epoch == 0:
        raise EpochNotRetainedError("the job has no epoch to save yet", fix="repeat the request after its first epoch")
    if not head.min_epoch <= epoch <= head.epoch:
        raise EpochNotRetainedError(
            f"epoch {epoch} cannot be saved: the retained epochs are {head.min_epoch} to {head.epoch}"
        )
    return AddSavepoint(name=name, epoch=epoch)


def _drop_savepoint(name: str, head: pb.CheckpointMetadata, waiting: Sequence[Effect]) -> Effect:
    check_name("savepoint", name)
    if DropSavepoint(name) in waiting or name not in {pin.savepoint for pin in head.pins}:
        raise SavepointError(f"there is no savepoint {name!r}", fix="`statebed ls STATE JOB --savepoints` lists them")
    return DropSavepoint(name=name)


def next_pins(pins: Sequence[pb.Pin], *, added: Sequence[pb.Pin], effects: Sequence[Effect]) -> list[pb.Pin]:
    """Return the pins of the next record: those of the head without the dropped ones, then the added ones."""
    dropped = {effect.name for effect in effects if isinstance(effect, DropSavepoint)}
    return [pin for pin in pins if pin.savepoint not in dropped] + list(added)
