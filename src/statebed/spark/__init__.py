"""Pipelines on Spark: the job API, and the controller that turns micro-batches into epochs."""

from statebed.spark.api.exit_codes import exit_codes
from statebed.spark.api.job import Job
from statebed.spark.api.query import Query, QueryState, QueryStatus
from statebed.spark.api.stream import JobStream, Transformed
from statebed.spark.epoch.reports import EpochSummary, OperatorSummary

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
