"""Checkpoints: the log of records, the live run, publication and clean-up. Performs the I/O of `statebed.protocol`."""

from statebed.checkpoint.backend import BackingStore, ParquetBackend, StateBackend
from statebed.checkpoint.cleanup import CleanupResult
from statebed.checkpoint.environment import Environment
from statebed.checkpoint.log import CheckpointLog
from statebed.checkpoint.open_run import RunOptions
from statebed.checkpoint.publisher import Publication, Publisher, Rebuilt, Sink
from statebed.checkpoint.requests import send_request
from statebed.checkpoint.run import Run
from statebed.protocol import (
    DamagePolicy,
    EpochDraft,
    Guarantee,
    Origin,
    Retention,
    RollbackPolicy,
    SinkIdentity,
    SinkPosition,
    SinkStart,
)

__all__ = [
    "BackingStore",
    "CheckpointLog",
    "CleanupResult",
    "DamagePolicy",
    "Environment",
    "EpochDraft",
    "Guarantee",
    "Origin",
    "ParquetBackend",
    "Publication",
    "Publisher",
    "Rebuilt",
    "Retention",
    "RollbackPolicy",
    "Run",
    "RunOptions",
    "Sink",
    "SinkIdentity",
    "SinkPosition",
    "SinkStart",
    "StateBackend",
    "send_request",
]
