"""Operators: definitions that travel with tasks, and the subtask that runs them. No Spark in here."""

from statebed.operators import functions
from statebed.operators.aggregates import Aggregate, BoundAggregate, EventTime
from statebed.operators.aggregation import Emit
from statebed.operators.arithmetic import Function, Retraction
from statebed.operators.operator import MAIN, Changes, Clock, Input, Operator, Output, StepResult
from statebed.operators.partials import input_column
from statebed.operators.subtask import SubtaskReport, SubtaskTask, run_subtask
from statebed.operators.subtask_compaction import CompactedSubtask, CompactionTask, compact_subtask
from statebed.operators.window_aggregate import WindowAggregate
from statebed.operators.windows import Window, cumulative, parse_duration, sliding, tumbling

__all__ = [
    "MAIN",
    "Aggregate",
    "BoundAggregate",
    "Changes",
    "Clock",
    "CompactedSubtask",
    "CompactionTask",
    "Emit",
    "EventTime",
    "Function",
    "Input",
    "Operator",
    "Output",
    "Retraction",
    "StepResult",
    "SubtaskReport",
    "SubtaskTask",
    "Window",
    "WindowAggregate",
    "compact_subtask",
    "cumulative",
    "functions",
    "input_column",
    "parse_duration",
    "run_subtask",
    "sliding",
    "tumbling",
]
