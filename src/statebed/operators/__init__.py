"""Operators: definitions that travel with tasks, and the subtask that runs them. No Spark in here."""

from statebed.operators import functions
from statebed.operators.aggregates import Aggregate, BoundAggregate, EventTime, Function
from statebed.operators.subtask import SubtaskReport, SubtaskTask, run_subtask
from statebed.operators.tumbling import TumblingAggregate, input_column
from statebed.operators.windows import TumblingWindow, parse_duration, tumbling

__all__ = [
    "Aggregate",
    "BoundAggregate",
    "EventTime",
    "Function",
    "SubtaskReport",
    "SubtaskTask",
    "TumblingAggregate",
    "TumblingWindow",
    "functions",
    "input_column",
    "parse_duration",
    "run_subtask",
    "tumbling",
]
