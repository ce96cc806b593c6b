"""Aggregates: the functions that users write, their accumulators, and pre-aggregation before rows are shuffled."""

from statebed.aggregates import functions
from statebed.aggregates.aggregate import Aggregate, BoundAggregate, EventTime
from statebed.aggregates.declaration import Function, Retraction
from statebed.aggregates.partials import input_column

__all__ = ["Aggregate", "BoundAggregate", "EventTime", "Function", "Retraction", "functions", "input_column"]
