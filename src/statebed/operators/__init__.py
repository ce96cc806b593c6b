"""Operators: definitions that travel with tasks, and the subtask that runs them. No Spark in here."""

from statebed.operators import functions
from statebed.operators.aggregates import Aggregate, BoundAggregate, EventTime, Function
from statebed.operators.subtask import SubtaskReport, SubtaskTask, run_subtask
from statebed.operators.window_aggregate import WindowAggregate, input_column
from statebed.operators.windows import Window, cumulative, parse_duration, sliding, tumbling

__all__ = [
    "Aggregate",
    "BoundAggregate",
    "EventTime",
    "Function",
    "SubtaskReport",
    "SubtaskTask",
    "Window",
    "WindowAggregate",
    "cumulative",
    "functions",
    "input_column",
    "parse_duration",
    "run_subtask",
    "sliding",
    "tumbling",
]
