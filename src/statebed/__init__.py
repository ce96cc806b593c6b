"""State you can SELECT: memory-bounded, checkpointed, rescalable operator state for Spark and Python, as plain Parquet.

    import statebed as sb

    job = sb.Job("rides", state="./statebed-state")
    rides = job.source(df, name="rides", watermark=("ts", "10 minutes"))
    per_minute = rides.group_by("driver", sb.tumbling("1 minute"), name="per_minute").agg(trips=sb.count())
    per_minute.write("parquet", path="out")
    job.start(available_now=True).await_termination()

Each name is loaded when it is first used, so commands and workers start without what they do not need, and everything
that needs no Spark works without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from statebed.errors import MissingDependencyError

if TYPE_CHECKING:
    from statebed import testing
    from statebed.aggregates import functions as _functions
    from statebed.aggregates.functions.bits import *
    from statebed.aggregates.functions.counts import *
    from statebed.aggregates.functions.extremes import *
    from statebed.aggregates.functions.moments import *
    from statebed.aggregates.functions.sums import *
    from statebed.aggregates.functions.user_defined import *
    from statebed.aggregates.functions.values import *
    from statebed.checkpoint import (
        DamagePolicy,
        Guarantee,
        Origin,
        Publication,
        Retention,
        RollbackPolicy,
        RunOptions,
        Sink,
        SinkStart,
    )
    from statebed.checkpoint.clone import clone_job
    from statebed.errors import FencedError, InputError, StatebedError, UnboundedStateWarning
    from statebed.expressions.user_functions import udf
    from statebed.flow import Flow, as_of, between, eq
    from statebed.flow.window_calls import (
        cume_dist,
        dense_rank,
        first_value,
        lag,
        last_value,
        lead,
        ntile,
        percent_rank,
        rank,
        row_number,
        running_count,
        running_max,
        running_mean,
        running_min,
        running_sum,
    )
    from statebed.inspect import Positions, StateDiff, StateTable, diff_state, read_positions, read_state
    from statebed.operators import cumulative, sliding, tumbling
    from statebed.operators.process import Context, ListState, MapState, Process, ProcessKey, ValueState
    from statebed.operators.window_definition import session
    from statebed.queries import Job, explain, stream, write_stream
    from statebed.sinks import ConsoleSink, MemorySink, TwoPhaseSink, read_table, table_files
    from statebed.spark.api.exit_codes import exit_codes
    from statebed.spark.api.query import Query, QueryState, QueryStatus
    from statebed.spark.epoch.reports import EpochSummary

    __all__ = [
        "ConsoleSink",
        "Context",
        "DamagePolicy",
        "EpochSummary",
        "FencedError",
        "Flow",
        "Guarantee",
        "InputError",
        "Job",
        "ListState",
        "MapState",
        "MemorySink",
        "Origin",
        "Positions",
        "Process",
        "ProcessKey",
        "Publication",
        "Query",
        "QueryState",
        "QueryStatus",
        "Retention",
        "RollbackPolicy",
        "RunOptions",
        "Sink",
        "SinkStart",
        "StateDiff",
        "StateTable",
        "StatebedError",
        "TwoPhaseSink",
        "UnboundedStateWarning",
        "ValueState",
        "as_of",
        "between",
        "clone_job",
        "cume_dist",
        "cumulative",
        "dense_rank",
        "diff_state",
        "eq",
        "exit_codes",
        "explain",
        "first_value",
        "lag",
        "last_value",
        "lead",
        "ntile",
        "percent_rank",
        "rank",
        "read_positions",
        "read_state",
        "read_table",
        "row_number",
        "running_count",
        "running_max",
        "running_mean",
        "running_min",
        "running_sum",
        "session",
        "sliding",
        "stream",
        "table_files",
        "testing",
        "tumbling",
        "udf",
        "write_stream",
    ]
    __all__ += _functions.__all__

_MODULES = {
    "statebed.checkpoint": (
        "DamagePolicy Guarantee Origin Publication Retention RollbackPolicy RunOptions Sink SinkStart"
    ),
    "statebed.checkpoint.clone": "clone_job",
    "statebed.errors": "FencedError InputError StatebedError UnboundedStateWarning",
    "statebed.expressions.user_functions": "udf",
    "statebed.flow": "Flow as_of between eq",
    "statebed.flow.window_calls": (
        "cume_dist dense_rank first_value lag last_value lead ntile percent_rank rank row_number running_count "
        "running_max running_mean running_min running_sum"
    ),
    "statebed.inspect": "Positions StateDiff StateTable diff_state read_positions read_state",
    "statebed.operators": "cumulative sliding tumbling",
    "statebed.operators.process": "Context ListState MapState Process ProcessKey ValueState",
    "statebed.operators.window_definition": "session",
    "statebed.queries": "Job explain stream write_stream",
    "statebed.sinks": "ConsoleSink MemorySink TwoPhaseSink read_table table_files",
    "statebed.spark.api.exit_codes": "exit_codes",
    "statebed.spark.api.query": "Query QueryState QueryStatus",
    "statebed.spark.epoch.reports": "EpochSummary",
}
"""The public names of each module but those of aggregates: a new aggregate appears without an entry here."""

_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}
_AGGREGATES = "statebed.aggregates.functions"
_OF_EXTRA = {"pyspark", "pandas", "py4j"}
"""Packages that only the extra `spark` installs."""

_OTHER_NAMES = {
    "window": "tumbling or sb.sliding",
    "session_window": "session",
    "hop": "sliding",
    "tumble": "tumbling",
    "cumulate": "cumulative",
}
"""Names of other engines, and ours; those of aggregates are in their declarations."""


def __dir__() -> list[str]:
    return sorted(["testing", *_MODULE_OF, *import_module(_AGGREGATES).__all__])


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return __dir__()
    if name == "testing":
        return import_module("statebed.testing")
    if name.startswith("_"):
        raise AttributeError(f"module 'statebed' has no attribute {name!r}", name=name)
    try:
        public = getattr(import_module(_MODULE_OF.get(name) or _module_of_aggregate(name)), name)
    except ModuleNotFoundError as error:
        if error.name not in _OF_EXTRA:
            raise
        raise MissingDependencyError(
            f"statebed.{name} needs {error.name}", fix="pip install 'statebed[spark]'"
        ) from error
    globals()[name] = public  # from now on it is found without this function
    return public


def _module_of_aggregate(name: str) -> str:
    aggregates = import_module(_AGGREGATES)
    if name not in aggregates.__all__:
        ours = (aggregates.OTHER_NAMES | _OTHER_NAMES).get(name)
        hint = "" if ours is None else f"; use sb.{ours}"
        raise AttributeError(f"module 'statebed' has no attribute {name!r}{hint}", name=name)
    return _AGGREGATES
