"""Processes: user-defined functions over batches, with keyed state, timers, time to live and side outputs."""

from statebed.operators.process.context import Context
from statebed.operators.process.definition import Process
from statebed.operators.process.key_context import KeyContext
from statebed.operators.process.key_states import KeyStates
from statebed.operators.process.per_key import ProcessKey
from statebed.operators.process.process_operator import ProcessOperator
from statebed.operators.process.states import ListState, MapState, State, ValueState
from statebed.operators.process.timers import TimerKind

__all__ = [
    "Context",
    "KeyContext",
    "KeyStates",
    "ListState",
    "MapState",
    "Process",
    "ProcessKey",
    "ProcessOperator",
    "State",
    "TimerKind",
    "ValueState",
]
