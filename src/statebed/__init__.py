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
from statebed.aggregates.functions import (
    aggregate,
    any_value,
    approx_count_distinct,
    approx_percentile,
    bit_and,
    bit_or,
    bit_xor,
    bool_and,
    bool_or,
    collect_list,
    collect_set,
    corr,
    count,
    count_distinct,
    count_if,
    covar_pop,
    covar_samp,
    first,
    last,
    max,  # noqa: A004 - SQL's name, used as sb.max
    max_by,
    mean,
    median,
    min,  # noqa: A004 - SQL's name, used as sb.min
    min_by,
    mode,
    percentile,
    regr_avgx,
    regr_avgy,
    regr_count,
    regr_intercept,
    regr_r2,
    regr_slope,
    regr_sxx,
    regr_sxy,
    regr_syy,
    stddev_pop,
    stddev_samp,
    string_agg,
    sum,  # noqa: A004 - SQL's name, used as sb.sum
    sum_distinct,
    var_pop,
    var_samp,
)
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
from statebed.inspect import StateDiff, StateTable, diff_state, read_state
from statebed.operators import cumulative, sliding, tumbling
from statebed.operators.process import Context, ListState, MapState, Process, ProcessKey, ValueState
from statebed.operators.window_definition import session
from statebed.sinks import ConsoleSink, MemorySink, read_table, table_files

if TYPE_CHECKING:
    from statebed.spark import EpochSummary, Job, Query, QueryState, QueryStatus, exit_codes

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
    "UnboundedStateWarning",
    "ValueState",
    "aggregate",
    "any_value",
    "approx_count_distinct",
    "approx_percentile",
    "as_of",
    "between",
    "bit_and",
    "bit_or",
    "bit_xor",
    "bool_and",
    "bool_or",
    "clone_job",
    "collect_list",
    "collect_set",
    "corr",
    "count",
    "count_distinct",
    "count_if",
    "covar_pop",
    "covar_samp",
    "cume_dist",
    "cumulative",
    "dense_rank",
    "diff_state",
    "eq",
    "exit_codes",
    "first",
    "first_value",
    "lag",
    "last",
    "last_value",
    "lead",
    "max",
    "max_by",
    "mean",
    "median",
    "min",
    "min_by",
    "mode",
    "ntile",
    "percent_rank",
    "percentile",
    "rank",
    "read_state",
    "read_table",
    "regr_avgx",
    "regr_avgy",
    "regr_count",
    "regr_intercept",
    "regr_r2",
    "regr_slope",
    "regr_sxx",
    "regr_sxy",
    "regr_syy",
    "row_number",
    "running_count",
    "running_max",
    "running_mean",
    "running_min",
    "running_sum",
    "session",
    "sliding",
    "stddev_pop",
    "stddev_samp",
    "string_agg",
    "sum",
    "sum_distinct",
    "table_files",
    "testing",
    "tumbling",
    "var_pop",
    "var_samp",
]

_FROM_SPARK = frozenset({"EpochSummary", "Job", "Query", "QueryState", "QueryStatus", "exit_codes"})


_OTHER_NAMES = {
    "avg": "mean",
    "std": "stddev_samp",
    "stddev": "stddev_samp",
    "variance": "var_samp",
    "countDistinct": "count_distinct",
    "sumDistinct": "sum_distinct",
    "approxCountDistinct": "approx_count_distinct",
    "listagg": "string_agg",
    "every": "bool_and",
    "any": "bool_or",
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
        return getattr(import_module("statebed.spark"), name)
    except ModuleNotFoundError as error:
        if error.name not in {"pyspark", "pandas", "py4j"}:
            raise
        raise MissingDependencyError(
            f"statebed.{name} needs {error.name}", fix="pip install 'statebed[spark]'"
        ) from error
