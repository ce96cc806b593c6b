"""Commit protocol: pure decisions over observed facts. No module here does I/O."""

from statebed.protocol.base_choice import DamagePolicy, Origin, Recovery, RollbackPolicy, SkippedRecord
from statebed.protocol.cleanup import Licence
from statebed.protocol.commit import Claim
from statebed.protocol.publication import Guarantee, PublishStep, SinkPosition
from statebed.protocol.records import EpochDraft
from statebed.protocol.replay import Replay, decide_replay
from statebed.protocol.retention import Retention
from statebed.protocol.sink_history import SinkIdentity
from statebed.protocol.sink_start import SinkStart

__all__ = [
    "Claim",
    "DamagePolicy",
    "EpochDraft",
    "Guarantee",
    "Licence",
    "Origin",
    "PublishStep",
    "Recovery",
    "Replay",
    "Retention",
    "RollbackPolicy",
    "SinkIdentity",
    "SinkPosition",
    "SinkStart",
    "SkippedRecord",
    "decide_replay",
]
