"""Pipelines on Spark: the job API, and the controller that turns micro-batches into epochs."""

from statebed.spark.exits import exit_codes
from statebed.spark.job import Job
from statebed.spark.query import Query, QueryState, QueryStatus
from statebed.spark.reports import EpochSummary
from statebed.spark.stream import AggregatedStream, GroupedStream, Stream

__all__ = [
    "AggregatedStream",
    "EpochSummary",
    "GroupedStream",
    "Job",
    "Query",
    "QueryState",
    "QueryStatus",
    "Stream",
    "exit_codes",
]
