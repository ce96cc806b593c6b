"""Builds sinks from what the user writes, and refuses those that cannot work."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from statebed.checkpoint import Guarantee, Sink
from statebed.errors import InputError
from statebed.format.stream_schema import WEIGHT, Changes, Output
from statebed.protocol import Recovery
from statebed.sinks import BaseSink, FunctionSink, TransformedSink
from statebed.sinks.registry import KINDS, SinkRequest
from statebed.sinks.row_shape import Form, declared_key, has_one_row, make_shape
from statebed.spark.api.format_sink import FormatSink, check_format, format_target
from statebed.spark.arrow_types import arrow_schema

Transform = Callable[[DataFrame], DataFrame]
SinkLike = str | Callable[..., object] | Sink
"""Name of a sink or of a format of Spark, a function(df, epoch), which may have more arguments with defaults, or a
sink.
"""
_SPARK_KAFKA = "kafka.bootstrap.servers"
"""Option of Spark's own Kafka writer, which is at least once; statebed's sink has `servers` instead."""
_FUNCTION_OPTIONS = frozenset({"form", "epoch_column"})


def make_sink(
    sink: SinkLike,
    *,
    output: Output,
    operator_id: str,
    job_id: str,
    session: SparkSession,
    path: str | None = None,
    name: str | None = None,
    key: str | Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
    transform: Transform | None = None,
    unnamed_rows: str = "",
) -> Sink:
    """Build a sink from a name, a format of Spark, a function(df, epoch), or an object that is a sink.

    `unnamed_rows` is what the user wrote for the rows if neither the sink nor their operator has a name.

    `transform` is a user function applied to the rows of each committed epoch first.
    """
    shown = f"the sink of {unnamed_rows}" if unnamed_rows else f"sink {name or operator_id!r}"
    where = f"job {job_id}, {shown}"
    if not isinstance(sink, str) and hasattr(sink, "publish") and hasattr(sink, "sink_id"):
        arguments = [path, key, transform, *(options or {}).values()]
        if any(value is not None for value in arguments):
            raise InputError(
                "a custom sink object takes rows as they are and accepts no options",
                where=where,
                fix="call write(sink) without options",
            )
        return cast("Sink", sink)
    if not isinstance(sink, str) and not callable(sink):
        raise InputError(
            f"expected a sink, got {sink!r}",
            where=where,
            fix="pass a name such as 'parquet', a function(df, epoch), or an object with publish()",
        )
    wanted = SinkRequest(
        sink_id=name or operator_id,
        job_id=job_id,
        output=output,
        key=(),
        path=path,
        options=options or {},
        where=where,
        one_row=has_one_row(output, key, where=where),
        # Like Spark's own memory sink.
        show=lambda rows: to_data_frame(session, rows).createOrReplaceTempView(name or operator_id),
    )
    if isinstance(sink, str) and sink in KINDS and _SPARK_KAFKA not in wanted.options:
        return _known(sink, wanted, key, session, transform)
    wanted = replace(wanted, key=declared_key(output, key, where=where))
    to_frame = _framed(session, transform)
    if isinstance(sink, str):
        return _format(sink, wanted, session, to_frame)
    unknown = sorted(set(wanted.options) - _FUNCTION_OPTIONS)
    if unknown or path is not None:
        raise InputError(
            f"a function sink does not accept {', '.join(unknown) or 'path'}",
            where=where,
            fix=f"options of a function: {', '.join(sorted(_FUNCTION_OPTIONS))}",
        )
    return FunctionSink(sink_id=wanted.sink_id, function=sink, to_frame=to_frame, shape=wanted.shape())


def _known(
    kind: str, wanted: SinkRequest, key: str | Sequence[str] | None, session: SparkSession, transform: Transform | None
) -> Sink:
    """Build one of statebed's own sinks; rows that a user function returns come back from Spark as Arrow."""
    if transform is None:
        return KINDS[kind].make(replace(wanted, key=declared_key(wanted.output, key, where=wanted.where)))
    before = wanted.output
    weight = [pa.field(WEIGHT, pa.int64(), nullable=False)] if before.changes is Changes.CHANGELOG else []
    schema = pa.schema([*before.columns, *weight])
    returned = arrow_schema(transform(to_data_frame(session, schema.empty_table())).schema)
    if weight and (WEIGHT not in returned.names or returned.field(WEIGHT).type != pa.int64()):
        raise InputError(
            f"the stream is a changelog, but the function in transform() returns rows without {WEIGHT} (a bigint)",
            where=wanted.where,
            fix=f"keep the column {WEIGHT}: +n inserts the row n times, -n retracts it n times",
        )
    after = Output(pa.schema([field for field in returned if not weight or field.name != WEIGHT]), before.changes)
    taken = [name for name in after.columns.names if name.lower() == WEIGHT]
    if taken:
        raise InputError(
            f"the function in transform() returns a column {taken[0]!r}, which is reserved for weights of changelogs",
            where=wanted.where,
            fix="rename the column",
        )
    inner = KINDS[kind].make(replace(wanted, output=after, key=declared_key(after, key, where=wanted.where)))
    frame = _framed(session, transform)
    return TransformedSink(inner, lambda rows: frame(rows).toArrow(), schema=pa.schema([*after.columns, *weight]))


def _format(name: str, wanted: SinkRequest, session: SparkSession, to_frame: Callable[[pa.Table], DataFrame]) -> Sink:
    options = dict(wanted.options)
    form, epoch_column = options.pop("form", None), options.pop("epoch_column", None)
    check_format(session, name, known=sorted(KINDS), where=wanted.where)
    if wanted.is_changelog and form is None and not wanted.key and not wanted.one_row:
        raise InputError(
            f"the stream is a changelog, but Spark's format {name!r} only appends rows",
            where=wanted.where,
            fix=f"use write(..., key={wanted.output.columns.names[0]!r}) for rows with row_kind, form='weights' for "
            f"rows with {WEIGHT}, or a sink that updates: 'postgres', 'sqlite'",
        )
    shape = make_shape(
        wanted.output,
        envelope=wanted.envelope,
        form=form,
        epoch_column=epoch_column,
        default=Form.WEIGHTS,
        where=wanted.where,
    )
    target = format_target(name, path=wanted.path, options=options, columns=shape.schema.names, where=wanted.where)
    return FormatSink(sink_id=wanted.sink_id, target=target, shape=shape, to_frame=to_frame)


def _framed(session: SparkSession, transform: Transform | None) -> Callable[[pa.Table], DataFrame]:
    def framed(rows: pa.Table) -> DataFrame:
        frame = to_data_frame(session, rows)
        return frame if transform is None else transform(frame)

    return framed


def to_data_frame(session: SparkSession, rows: pa.Table) -> DataFrame:
    """Convert rows to a DataFrame with the types of their stream. Spark itself would interpret local times in the
    session's zone.
    """
    return session.createDataFrame(rows, schema=from_arrow_schema(rows.schema, prefer_timestamp_ntz=True))


def described(sink: Sink) -> str:
    """Describe a sink in one line: its guarantee and its destination."""
    promise = "exactly once"
    if sink.guarantee is not Guarantee.EXACTLY_ONCE:
        promise = "at least once: after a crash it may see an epoch again, with the same rows and number"
    return f"{sink.described} ({promise})" if isinstance(sink, BaseSink) else promise


def check_sinks(sinks: Iterable[Sink], recovery: Recovery, *, read_again: Callable[[], Recovery]) -> None:
    """Check, before a run opens and without writing, that every sink has its own destination.

    A run that began after the log was read may have opened a sink already. `read_again` reads the log as it is now, and
    is called before a sink is refused.
    """
    for sink in (sink for sink in sinks if isinstance(sink, BaseSink)):
        try:
            sink.check(last_number=recovery.last_number)
        except InputError:
            newest = read_again()
            if newest.last_number == recovery.last_number:
                raise
            sink.check(last_number=newest.last_number)


def probe_sinks(sinks: Iterable[Sink]) -> None:
    """Check, before a run opens and after all other checks, that every sink can write."""
    for sink in sinks:
        if isinstance(sink, BaseSink):
            sink.probe()


def composed(functions: Sequence[Transform]) -> Transform | None:
    """Compose the functions into one that applies them in order."""
    if not functions:
        return None

    def applied(df: DataFrame) -> DataFrame:
        for function in functions:
            df = function(df)
        return df

    return applied
