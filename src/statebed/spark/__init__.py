"""Pipelines on Spark: the job API, and the controller that turns micro-batches into epochs."""

from statebed.spark.exits import exit_codes
from statebed.spark.job import Job
from statebed.spark.query import Query, QueryState, QueryStatus
from statebed.spark.reports import EpochSummary, OperatorSummary
from statebed.spark.stream import JobStream, Transformed

__all__ = [
    "EpochSummary",
    "Job",
    "JobStream",
    "OperatorSummary",
    "Query",
    "QueryState",
    "QueryStatus",
    "Transformed",
    "exit_codes",
]
