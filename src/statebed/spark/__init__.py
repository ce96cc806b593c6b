"""Pipelines on Spark: the job API, and the controller that turns micro-batches into epochs.

Names are loaded when they are first used: Python workers and Spark's data source need few of these modules.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_MODULE_OF = {
    **dict.fromkeys(["EpochSummary", "OperatorSummary"], "epoch.reports"),
    "Job": "api.job",
    **dict.fromkeys(["JobStream", "Transformed"], "api.stream"),
    **dict.fromkeys(["Query", "QueryState", "QueryStatus"], "api.query"),
    "exit_codes": "api.exit_codes",
}


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'statebed.spark' has no attribute {name!r}", name=name)
    return getattr(import_module(f"statebed.spark.{_MODULE_OF[name]}"), name)
