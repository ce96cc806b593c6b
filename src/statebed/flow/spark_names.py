"""Names of other APIs that streams, jobs and queries do not have: an AttributeError names the equivalent."""

from typing import TYPE_CHECKING, NoReturn

HINTS = {
    "groupBy": 'group_by("key", sb.tumbling("1 minute")) with a window, key_by("key") without one',
    "groupby": 'group_by("key", sb.tumbling("1 minute")) with a window, key_by("key") without one',
    "withWatermark": 'watermark=("ts", "10 minutes") of job.source, or df.withWatermark before it',
    "withColumn": 'with_columns(name="expression")',
    "withColumns": 'with_columns(name="expression")',
    "withColumnRenamed": 'select("old as new", ...)',
    "withColumnsRenamed": 'select("old as new", ...)',
    "filter": 'where("condition")',
    "selectExpr": 'select("a", "b * 2 as c"), which takes SQL text',
    "drop": "select(...) with the columns to keep",
    "dropDuplicates": 'deduplicate("key", ttl="1 day")',
    "drop_duplicates": 'deduplicate("key", ttl="1 day")',
    "dropDuplicatesWithinWatermark": 'deduplicate("key", ttl="1 day")',
    "distinct": "deduplicate(*columns)",
    "unionByName": "union(other)",
    "unionAll": "union(other)",
    "writeStream": 'write("parquet", path="out"), then job.start()',
    "readStream": "job.source(spark.readStream...)",
    "foreachBatch": "write(function), with function(df, epoch)",
    "toTable": 'write("parquet", path="out")',
    "orderBy": 'key_by(...).top(n, "column desc")',
    "sort": 'key_by(...).top(n, "column desc")',
    "limit": 'key_by(...).top(n, "column desc")',
    "crossJoin": "join(other, on=[])",
    "mapInPandas": "key_by(...).process(sb.Process subclass)",
    "applyInPandasWithState": "key_by(...).process(sb.ProcessKey subclass)",
    "transformWithState": "key_by(...).process(sb.ProcessKey subclass)",
    "transformWithStateInPandas": "key_by(...).process(sb.ProcessKey subclass)",
    "flatMapGroupsWithState": "key_by(...).process(sb.ProcessKey subclass)",
    "schema": "columns",
    "printSchema": "repr(stream) or columns",
    "show": 'write("console")',
    "collect": "write(sb.MemorySink(name))",
    "count": "agg(n=sb.count())",
    "avg": 'agg(mean=sb.mean("column"))',
    "mean": 'agg(mean=sb.mean("column"))',
    "sum": 'agg(total=sb.sum("column"))',
    "min": 'agg(least=sb.min("column"))',
    "max": 'agg(most=sb.max("column"))',
    "awaitTermination": "await_termination(timeout)",
    "processAllAvailable": "job.start(available_now=True).await_termination()",
    "lastProgress": "recent_progress[-1]",
    "recentProgress": "recent_progress",
    "isActive": "status",
    "runId": "status.run",
    "explainInternal": "job.explain()",
    "trigger": 'job.start(available_now=True) or job.start(processing_time="1 minute")',
    "option": "options of write(...) or job.start(...)",
    "outputMode": 'agg(emit="close") or agg(emit="early")',
    "queryName": "sb.Job(name)",
    "readyState": "status",
}
"""Spark's name, and what to write instead."""
WINDOWS = frozenset({"window", "tumbling", "sliding", "session", "cumulative", "tumble", "hop"})
"""Names that methods for windows have elsewhere."""
_LONGEST = 200


class SparkNames:
    """Mixin whose AttributeError for a name of another API names the equivalent here."""

    if not TYPE_CHECKING:  # type checkers would otherwise accept any attribute

        def __getattr__(self, name: str) -> NoReturn:
            kind = type(self).__name__
            ours = HINTS.get(name)
            hint = "" if ours is None else f"; Spark's {name} is here: {ours}"
            if name in WINDOWS:
                hint = '; pass the window to group_by: group_by("key", sb.tumbling("1 minute")).agg(...)'
            raise AttributeError(f"{kind!r} object has no attribute {name!r}{hint}", name=name, obj=self)


def line_of(text: str) -> str:
    """Return text as one line of at most 200 characters."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 4]}...>"
