"""State you can SELECT: memory-bounded, checkpointed, rescalable operator state for Spark and Python, as plain Parquet.

    import statebed as sb

    job = sb.Job("rides", state="./statebed-state")
    rides = job.source(df, name="rides", watermark=("ts", "10 minutes"))
    per_minute = rides.group_by("driver", sb.tumbling("1 minute"), name="per_minute").agg(trips=sb.count())
    per_minute.write("parquet", path="out")
    job.start(available_now=True).await_termination()

Names that need Spark are loaded when they are first used, so the rest works without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
from statebed.errors import FencedError, InputError, MissingDependencyError, StatebedError, UnboundedStateWarning
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
from statebed.sinks import ConsoleSink, MemorySink, TwoPhaseSink, read_table, table_files

if TYPE_CHECKING:
    from statebed.queries import Job, explain, stream, write_stream
    from statebed.spark import EpochSummary, Query, QueryState, QueryStatus, exit_codes

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

_FROM_SPARK = dict.fromkeys(["EpochSummary", "Query", "QueryState", "QueryStatus", "exit_codes"], "statebed.spark")
_FROM_SPARK |= dict.fromkeys(["Job", "explain", "stream", "write_stream"], "statebed.queries")
"""Names that need Spark, and their packages."""


_OTHER_NAMES = _functions.OTHER_NAMES | {
    "window": "tumbling or sb.sliding",
    "session_window": "session",
    "hop": "sliding",
    "tumble": "tumbling",
    "cumulate": "cumulative",
}
"""Names of other engines, and ours."""


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name not in _FROM_SPARK:
        ours = _OTHER_NAMES.get(name)
        hint = "" if ours is None else f"; use sb.{ours}"
        raise AttributeError(f"module 'statebed' has no attribute {name!r}{hint}", name=name)
    try:
        return getattr(import_module(_FROM_SPARK[name]), name)
    except ModuleNotFoundError as error:
        if error.name not in {"pyspark", "pandas", "py4j"}:
            raise
        raise MissingDependencyError(
            f"statebed.{name} needs {error.name}", fix="pip install 'statebed[spark]'"
        ) from error
