"""A job: where its state lives, what it reads, what it computes, where results go.

    job = sb.Job("rides", state="./statebed-state")
    rides = job.source(df, name="rides", watermark=("ts", "10 minutes"))
    per_minute = rides.group_by("driver", sb.tumbling("1 minute"), name="per_minute").agg(trips=sb.count())
    per_minute.write("parquet", path="out")
    job.start(available_now=True).await_termination()

Mistakes are found before `start` writes anything.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from statebed.checkpoint import CheckpointLog, DamagePolicy, Environment, Publisher, Run, RunOptions, Sink
from statebed.checkpoint.opening import prepare_opening
from statebed.checkpoint.references import References
from statebed.errors import InputError
from statebed.format.names import check_name, job_folder
from statebed.format.ranges import check_parallelism
from statebed.operators import MAIN, parse_duration
from statebed.spark.controller import Controller
from statebed.spark.frames import input_error, named_column, prepare
from statebed.spark.outputs import check_places, check_sinks, make_sink, probe_sinks
from statebed.spark.plan import JobPlan
from statebed.spark.projection import SparkProjection, projection_folder
from statebed.spark.query import Query, Trigger
from statebed.spark.session import check_session, check_state_reachable, check_streaming, default_session
from statebed.spark.stream import AggregatedStream, Stream
from statebed.storage import LocalStore, MemoryStore, ScopedStore, get_storage_provider, probe_put_if_absent

DEFAULT_STATE = "./statebed-state"
_MEMORY = re.compile(r"\d+\s*[kmgt]i?b?", re.IGNORECASE)


class Job:
    """One pipeline with one state location."""

    def __init__(
        self,
        name: str,
        *,
        state: str | Path = DEFAULT_STATE,
        memory: str | None = None,
        parallelism: int | None = None,
        spark: SparkSession | None = None,
    ) -> None:
        self._job_id = check_name("job", name)
        self._store = get_storage_provider(state)
        self._memory = memory
        self._parallelism = None if parallelism is None else check_parallelism(parallelism)
        self._session = None if spark is None else check_session(spark)
        self._source: tuple[str, Stream] | None = None
        self._operator: AggregatedStream | None = None
        self._sinks: dict[str, Sink] = {}
        if memory is not None and not _MEMORY.fullmatch(memory):
            raise InputError(f"memory={memory!r} is no size", where=f"job {name}", fix="write '512m' or '2g'")
        if isinstance(self._store, MemoryStore):
            raise InputError(
                "a state in memory:// lives in one process, and Spark's workers are others",
                where=self._store.url,
                fix="use a folder or an object store",
            )

    @property
    def name(self) -> str:
        return self._job_id

    @property
    def spark(self) -> SparkSession:
        """The session of this job: the one given, else the active one, else a new local one."""
        if self._session is None:
            self._session = check_session(default_session(self._job_id))
        return self._session

    def source(self, df: DataFrame, *, name: str = "source", watermark: tuple[str, str] | None = None) -> Stream:
        """Rows to read: a streaming DataFrame, with `df.withWatermark(...)` or `watermark=("ts", "10 minutes")`."""
        where = f"job {self._job_id}, source {check_name('source', name)!r}"
        if self._source is not None:
            raise InputError(
                f"the job has the source {self._source[0]!r} already; this version takes one source per job",
                where=where,
                fix="unite the streaming DataFrames (df.union) before job.source, or make a job for each",
            )
        frame = check_streaming(df, source=name)
        session = check_session(frame.sparkSession)
        if self._session is not None and self._session.sparkContext is not session.sparkContext:
            raise InputError("the DataFrame belongs to another Spark than spark=", where=where, fix="use one session")
        self._session = self._session or session
        stream = Stream(self, _marked(frame, watermark, where=where), source=name)
        self._source = (name, stream)
        return stream

    def explain(self) -> str:
        """What the job will do, as text; finds the same mistakes as `start`."""
        return self._plan().explain()

    def start(
        self,
        *,
        available_now: bool = False,
        processing_time: str | None = None,
        options: RunOptions | None = None,
    ) -> Query:
        """Open a run, which fences every earlier one, and start the query.

        `available_now` reads what is there and ends; otherwise it goes on, looking for input every `processing_time`
        (default: as soon as there is some). `options` say which epoch to start from and what is retained.
        """
        if available_now and processing_time is not None:
            raise InputError(
                "available_now and processing_time exclude each other",
                where=f"job {self._job_id}",
                fix="give one of them",
            )
        trigger = Trigger(available_now=available_now, every_us=parse_duration(processing_time or "0 seconds"))
        if trigger.every_us < 0:
            raise InputError(
                f"processing_time={processing_time!r} is negative", where=f"job {self._job_id}", fix="write '1 second'"
            )
        plan = self._plan()
        environment = Environment()
        store = ScopedStore(self._store, job_folder(self._job_id))
        self._check_against_log(plan, store, options or RunOptions())
        run = Run.open(store, self._job_id, options=options, environment=environment)
        plan.check_continues(run.head)
        publisher = Publisher(run, plan.sinks)
        publisher.open()
        folder = projection_folder(
            local_state=plan.local_state, state_url=plan.state_url, job_id=self._job_id, lineage=run.lineage
        )
        projection = SparkProjection(folder, store)
        projection.align(run.head.source_position)
        controller = Controller(plan=plan, run=run, publisher=publisher, projection=projection, environment=environment)
        return Query.start(plan, controller, trigger, checkpoint_location=projection.location)

    # ---- called by the streams -------------------------------------------------------------------------------

    def add_operator(self, operator: AggregatedStream) -> AggregatedStream:
        """Make the operator part of the job."""
        if self._operator is not None:
            raise InputError(
                f"the job has the operator {self._operator.operator_id!r} already; this version takes one per job",
                where=f"job {self._job_id}, operator {operator.operator_id!r}",
                fix="put all aggregates into one agg(...), or make a job for each",
            )
        self._operator = operator
        return operator

    def add_sink(
        self,
        operator: AggregatedStream,
        sink: str | Callable[[Any, int], object] | Sink,
        *,
        path: str | None,
        name: str | None,
    ) -> None:
        """Make the sink part of the job."""
        made = make_sink(
            sink,
            output=operator.operator.outputs[MAIN],
            operator_id=operator.operator_id,
            job_id=self._job_id,
            session=self.spark,
            path=path,
            name=name,
        )
        where = f"job {self._job_id}"
        check_places(made, state_url=self._store.url, others=self._sinks.values(), where=where)
        self._sinks[made.sink_id] = made

    # ---- from the graph to a plan ----------------------------------------------------------------------------

    def _plan(self) -> JobPlan:
        where = f"job {self._job_id}"
        if self._source is None or self._operator is None:
            raise InputError(
                "the job has no source" if self._source is None else "the job has no stateful operator",
                where=where,
                fix="write job.source(df).group_by('key', sb.tumbling('1 minute')).agg(n=sb.count())",
            )
        if not self._sinks:
            raise InputError("the job has no sink", where=where, fix="write results.write('parquet', path='out')")
        session = self.spark
        local_state = Path(self._store.url) if isinstance(self._store, LocalStore) else None
        check_state_reachable(session, local_state=local_state is not None, state=self._store.url)
        parallelism = self._parallelism or check_parallelism(session.sparkContext.defaultParallelism)
        grouped = self._operator.grouped
        return JobPlan(
            job_id=self._job_id,
            state_url=self._store.url,
            local_state=local_state,
            memory=self._memory,
            parallelism=parallelism,
            session=session,
            source=self._source[0],
            event_time=grouped.event_time,
            operator=self._operator.operator,
            prepared=prepare(
                grouped.df,
                keys=grouped.keys,
                time=named_column(grouped.event_time.column),
                inputs=self._operator.inputs,
                parallelism=parallelism,
                where=where,
            ),
            sinks=tuple(self._sinks.values()),
        )

    def _check_against_log(self, plan: JobPlan, store: ScopedStore, options: RunOptions) -> None:
        """Everything that could be refused once the run is open, and then a fork would have happened already."""
        log = CheckpointLog(store, self._job_id)
        recovery = log.recover()
        if options.origin.is_head and options.damage is DamagePolicy.REFUSE:
            plan.check_continues(recovery.head)
        else:
            plan.check_continues(prepare_opening(log, References(log), options).base)
        check_sinks(plan.sinks, last_number=recovery.last_number)
        probe_put_if_absent(self._store)
        probe_sinks(plan.sinks)


def _marked(df: DataFrame, watermark: tuple[str, str] | None, *, where: str) -> DataFrame:
    if watermark is None:
        return df
    column, delay = watermark
    delay_us = parse_duration(delay)
    if delay_us < 0 or delay_us % 1_000:
        raise InputError(f"a watermark delay of {delay!r}", where=where, fix="give whole milliseconds, not below zero")
    try:
        return df.withWatermark(column, f"{delay_us // 1_000} milliseconds")
    except AnalysisException as error:
        raise input_error(error, df, where=where) from error
