"""A job: where its state lives, what it reads, what it computes, where results go.

    job = sb.Job("rides", state="./statebed-state")
    rides = job.source(df, name="rides", watermark=("ts", "10 minutes"))
    per_minute = rides.group_by("driver", sb.tumbling("1 minute"), name="per_minute").agg(trips=sb.count())
    per_minute.write("parquet", path="out")
    job.start(available_now=True).await_termination()

Mistakes are found before `start` writes anything.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from statebed.checkpoint import CheckpointLog, DamagePolicy, Environment, Retention, Run, RunOptions, Sink, SinkStart
from statebed.checkpoint.open_run import prepare_opening
from statebed.checkpoint.references import References
from statebed.config import Settings, resolve
from statebed.errors import InputError, StatebedError
from statebed.flow.graph import Edge, Graph, OperatorNode, SourceNode
from statebed.flow.keys import known
from statebed.flow.spark_names import SparkNames
from statebed.flow.stream import watermark_of
from statebed.format import checkpoint_pb2 as pb
from statebed.format.names import check_name, job_folder
from statebed.format.ranges import check_parallelism
from statebed.format.stream_schema import check_stream_columns
from statebed.inspect.records import summarise_epochs
from statebed.present import notebook
from statebed.protocol.kafka_start import SourceStart
from statebed.protocol.projection import with_offsets
from statebed.protocol.sink_names import DerivedSink, derived_name, settled_names
from statebed.quantities import Duration, parse_duration
from statebed.sinks import BaseSink, TwoPhaseSink
from statebed.sinks.neighbours import check_places
from statebed.sinks.watched import ShowRows, watched
from statebed.spark.api.checkpoint_list import CheckpointList
from statebed.spark.api.dead_letters import DeadLetters, check_written
from statebed.spark.api.explain import Explanation, explained
from statebed.spark.api.kafka_stream import kafka_stream
from statebed.spark.api.lake_frames import delta_frame, iceberg_frame
from statebed.spark.api.outputs import SinkLike, Transform, check_sinks, composed, make_sink, probe_sinks
from statebed.spark.api.query import Query, Trigger
from statebed.spark.api.start_choices import epochs_to_skip, start_choices
from statebed.spark.api.stream import JobStream, SparkFrame
from statebed.spark.checkpoint.folder import SparkProjection, projection_folder
from statebed.spark.epoch.controller import Controller
from statebed.spark.epoch.observers import Observers
from statebed.spark.epoch.run_reporter import RunReporter
from statebed.spark.plan.head_expressions import arrow_field
from statebed.spark.plan.host_memory import check_shares
from statebed.spark.plan.job_plan import JobPlan
from statebed.spark.plan.kafka_offsets import kafka_start
from statebed.spark.plan.source_frames import Split, event_time_of, feeding, marked, source_frame
from statebed.spark.plan.source_plan import streams_of
from statebed.spark.plan.state_match import RemovedStatePolicy, check_continues
from statebed.spark.plan.topology import topology
from statebed.spark.plan.user_functions import register_in_spark
from statebed.spark.plan.worker_resources import job_budget
from statebed.spark.probe.probe import probe_executors
from statebed.spark.session import active_session, check_session, check_streaming, configuration, default_session
from statebed.storage import LocalStore, MemoryStore, ScopedStore, get_storage_provider, probe_put_if_absent


class Job(SparkNames):
    """A pipeline with one state location.

    >>> sb.Job("rides", state="s3://bucket/state").name
    'rides'
    """

    def __init__(
        self,
        name: str,
        *,
        state: str | Path | None = None,
        memory: str | int | None = None,
        memory_shares: Mapping[str, str | float] | None = None,
        parallelism: int | None = None,
        spark: SparkSession | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        """Create a job. `memory_shares` reserves parts of the memory for operators or tables: `{"joined": "40%"}`.
        `settings` are other settings by name, see docs/reference/configuration.md.
        """
        self._job_id = check_name("job", name)
        self._keywords = {
            "state": state,
            "memory": memory,
            "memory_shares": memory_shares,
            "parallelism": parallelism,
            **(settings or {}),
        }
        self._session = None if spark is None else check_session(spark)
        self._store = get_storage_provider(self._settings().state)
        self._sinks: dict[str, tuple[Sink, Edge]] = {}
        self._derived: set[str] = set()
        """Sinks without a given name."""
        self.graph = Graph()
        self.frames: dict[Edge, SparkFrame] = {}
        """Streams that Spark computes."""
        self.dead_letters: dict[Edge, DeadLetters] = {}
        """Malformed messages of the streams of Kafka topics."""
        self.splits: dict[Edge, Split] = {}
        """Streams that are parts of others, and are read together with them."""
        if isinstance(self._store, MemoryStore):
            raise InputError(
                "state in memory:// belongs to one process, but Spark's workers are separate processes",
                where=self._store.url,
                fix="use a folder or an object store",
            )

    @property
    def name(self) -> str:
        return self._job_id

    @property
    def spark(self) -> SparkSession:
        """Session of this job: the given one, else the active one, else a new local one."""
        if self._session is None:
            self._session = check_session(default_session(self._job_id))
        return self._session

    def register_function(
        self, name: str, function: Callable[..., Any], *, returns: str | pa.DataType | None = None
    ) -> None:
        """Let expressions call a Python function by name, before operators and between them.

        Without `returns`, the function must be declared with `sb.udf`. It is also registered in the Spark session.
        """
        registered = self.graph.register_function(name, function, returns)
        register_in_spark(self.spark, name, registered)

    def source(
        self,
        df: DataFrame | str,
        name: str | DataFrame = "source",
        *,
        watermark: tuple[str, Duration] | None = None,
        idle_after: Duration | None = None,
    ) -> JobStream:
        """Add a source: a streaming DataFrame, with `df.withWatermark(...)` or `watermark=("ts", "10 minutes")`.

        After `idle_after` without rows, the source no longer holds back the watermarks of operators with several
        inputs. The name may also come first: `source("rides", df)`. The arguments are those of `Flow.source`.
        """
        rows, source_name = (name, df) if isinstance(df, str) else (df, str(name))
        where = f"job {self._job_id}, source {check_name('source', source_name)!r}"
        frame = check_streaming(rows, source=source_name)
        session = check_session(frame.sparkSession)
        if self._session is not None and self._session.sparkContext is not session.sparkContext:
            raise InputError(
                "the DataFrame belongs to another Spark session than spark=", where=where, fix="use one session"
            )
        if self._session is None:
            self._session = session
            self._store = get_storage_provider(
                self._settings().state
            )  # its configuration may contain the state location
        column, delay = (None, "0s") if watermark is None else watermark_of(watermark, where=where)
        pair = None if column is None else (column, parse_duration(delay))
        frame = marked(frame, pair, where=where)
        time = event_time_of(frame, where=where)
        check_stream_columns(frame.columns, where=where)
        columns = pa.schema([arrow_field(field, where=where) for field in frame.schema.fields])
        node = SourceNode(
            source_name,
            columns,
            None if time is None else time.column,
            0 if time is None else time.delay_us,
            None if idle_after is None else parse_duration(idle_after),
        )
        position = len(self.graph.sources)
        edge = Edge(self.graph.add(node))
        leaves = (source_name,) * len(streams_of(frame))
        self.frames[edge] = SparkFrame(source_frame(frame, time, position=position), time is not None, position, leaves)
        return JobStream(self.graph, edge, self)

    def delta(
        self,
        path: str,
        *,
        name: str = "source",
        watermark: tuple[str, Duration] | None = None,
        idle_after: Duration | None = None,
        starting: str | int = "all",
        storage_options: Mapping[str, str] | None = None,
    ) -> JobStream:
        """Add a Delta table as a source: first all rows of its newest version, then those that versions append.

        `starting="latest"` leaves out the rows that are there when the job first starts, and a version those up to it.
        The table is read without Delta's own package for Spark, and needs `pip install 'statebed[delta]'`.
        """
        where = f"job {self._job_id}, source {name!r}"
        df = delta_frame(self.spark, path, starting=starting, storage_options=storage_options, where=where)
        return self.source(df, name=name, watermark=watermark, idle_after=idle_after)

    def iceberg(
        self,
        table: str,
        *,
        path: str | None = None,
        catalog: str | Mapping[str, str] | None = None,
        name: str = "source",
        watermark: tuple[str, Duration] | None = None,
        idle_after: Duration | None = None,
        starting: str | int = "all",
    ) -> JobStream:
        """Add an Iceberg table as a source: first all rows of its newest snapshot, then those that snapshots append.

        `path` or `catalog` name the catalog as for `write("iceberg")`. `starting="latest"` leaves out the rows that are
        there when the job first starts, and the id of a snapshot those up to it. The table is read by pyiceberg,
        without Iceberg's runtime for Spark, and needs `pip install 'statebed[iceberg]'`.
        """
        where = f"job {self._job_id}, source {name!r}"
        df = iceberg_frame(self.spark, table, path=path, catalog=catalog, starting=starting, where=where)
        return self.source(df, name=name, watermark=watermark, idle_after=idle_after)

    def changelog(
        self,
        df: DataFrame,
        *,
        key: str | Sequence[str],
        format: str,  # noqa: A002 - the name that Spark's readers use
        order: str | Sequence[str] = (),
        name: str = "source",
        watermark: tuple[str, Duration] | None = None,
        idle_after: Duration | None = None,
        ttl: Duration | None = None,
        ttl_clock: str = "event_time",
    ) -> JobStream:
        """Add a source of change events of a database's log, as the changelog of its table.

        `format` is "debezium", "row_kind" or "delta_cdf"; see `JobStream.changelog`. The operator that holds the newest
        row of each key is called `{name}_changelog`.
        """
        events = self.source(df, name=name, watermark=watermark, idle_after=idle_after)
        return events.changelog(
            key,
            format=format,
            order=order,
            ttl=ttl,
            ttl_clock=ttl_clock,
            name=f"{check_name('source', name)}_changelog",
        )

    def kafka(
        self,
        topics: str | Sequence[str],
        *,
        servers: str,
        value: str = "json",
        schema: str | StructType | None = None,
        event_time: str | tuple[str, Duration] | None = None,
        name: str = "source",
        metadata: Sequence[str] = (),
        starting: str = "earliest",
        malformed: str = "fail",
        avro_header: bool = False,
        idle_after: Duration | None = None,
        options: Mapping[str, object] | None = None,
    ) -> JobStream:
        """Add Kafka topics as a source, through Spark's Kafka connector.

        `value` is the encoding of the messages' values: "json" with `schema="id bigint, at timestamp"`; "avro" with the
        writer's schema as JSON text (`avro_header=True` skips the header of Confluent's registry); "debezium" with the
        columns of the table, which gives the columns `before`, `after`, `op` and `ts_ms`; "raw" for the message as it
        is. `event_time` names the column of the event time, or is a pair of it and the watermark's delay. `metadata`
        lists columns of the message to keep: key, topic, partition, offset, timestamp. `starting` is where the first
        run starts: "earliest", "latest", or offsets as JSON text. A message that cannot be decoded stops the job, or
        with `malformed="dead_letters"` becomes a row of the stream's `dead_letters`. `options` are further options of
        Spark's connector, such as `kafka.security.protocol` or `maxOffsetsPerTrigger`.
        """
        return kafka_stream(
            self,
            topics=(topics,) if isinstance(topics, str) else tuple(topics),
            servers=servers,
            value=value,
            schema=schema,
            event_time=event_time,
            name=name,
            metadata=(metadata,) if isinstance(metadata, str) else tuple(metadata),
            starting=starting,
            malformed=malformed,
            avro_header=avro_header,
            idle_after=idle_after,
            options=options or {},
        )

    @property
    def sink_names(self) -> list[str]:
        """Names of the sinks, in the order in which they were added."""
        return list(self._sinks)

    def watch_sinks(self, show: ShowRows) -> None:
        """Call `show` with the rows of every epoch, after each sink of statebed's own has published them."""
        for name, (sink, edge) in self._sinks.items():
            # The rows of a two-phase sink are in its target, not in the outbox.
            if isinstance(sink, BaseSink) and not isinstance(sink, TwoPhaseSink):
                self._sinks[name] = (watched(sink, show), edge)

    def sink_edge(self, name: str) -> Edge:
        """Return the stream of a sink."""
        return self._sinks[name][1]

    def explain(self) -> Explanation:
        """Describe the job as text and as a diagram; raises the same errors as `start`."""
        return explained(self._plan())

    def checkpoints(self, limit: int = 20) -> CheckpointList:
        """Return the newest records of the job, newest first. The job may be running, or may never have run."""
        log = CheckpointLog(ScopedStore(self._store, job_folder(self._job_id)), self._job_id)
        return CheckpointList(self._job_id, tuple(reversed(summarise_epochs(log, limit=limit))))

    def __repr__(self) -> str:
        return f"<Job {self._job_id} with state at {self._store.url}>"

    def _repr_html_(self) -> str:
        try:
            return self.explain()._repr_html_()
        except StatebedError as mistake:
            # The job may still be incomplete.
            return notebook.block(f"job {self._job_id}", f"<pre>{escape(str(mistake))}</pre>")

    def start(
        self,
        *,
        available_now: bool = False,
        processing_time: str | None = None,
        options: RunOptions | None = None,
        removed: str = RemovedStatePolicy.REFUSE.value,
        sinks: Mapping[str, str | SinkStart] | None = None,
        abandon: Sequence[str] = (),
        skip: Mapping[str, int] | None = None,
        sources: Mapping[str, str | SourceStart] | None = None,
    ) -> Query:
        """Open a run, which fences every earlier one, and start the query.

        `available_now` reads the available input and ends; otherwise the query continues and looks for input every
        `processing_time` (default: as soon as possible). `options` choose the epoch to start from and the retention.
        `removed` chooses what happens to the state of operators that the job no longer has: "keep" or "drop". `sinks`
        chooses, by name, what to do with a sink that lacks epochs which are no longer retained: "rebuild",
        "start_empty" or "accept_gap"; it has no effect otherwise. `abandon` names sinks that the job no longer has,
        whose unpublished epochs are given up. `skip` gives up, by sink, the unpublished epochs up to a number, for
        example one with a row that the target refuses. `sources` chooses, by name, where a Kafka source continues whose
        messages are gone: "earliest" or "latest"; it has no effect otherwise.
        """
        if available_now and processing_time is not None:
            raise InputError(
                "available_now and processing_time cannot be combined",
                where=f"job {self._job_id}",
                fix="pass one of them",
            )
        trigger = Trigger(available_now=available_now, every_us=parse_duration(processing_time or "0 seconds"))
        if trigger.every_us < 0:
            raise InputError(
                f"`processing_time` must not be negative, got {processing_time!r}",
                where=f"job {self._job_id}",
                fix="pass for example '1 second'",
            )
        starts = start_choices(sinks, SinkStart, argument="sinks")
        moves = start_choices(sources, SourceStart, argument="sources")
        skipped = epochs_to_skip(skip)
        plan = self._plan()
        store = ScopedStore(self._store, job_folder(self._job_id))
        options = _with_retention(options or RunOptions(), plan.settings)
        if self._settle_names(Run.preview(store, self._job_id, options=options)):
            plan = self._plan()
        plan = replace(
            plan,
            removed=RemovedStatePolicy(known(removed, RemovedStatePolicy, "removed", where=f"job {self._job_id}")),
            sink_starts=starts,
            source_starts=moves,
            skipped_epochs=skipped,
            abandoned_sinks=(abandon,) if isinstance(abandon, str) else tuple(abandon),
        )
        plan.warn_of_unbounded_state()
        plan = self._checked_against_log(plan, store, options)
        observers = Observers.open(plan)
        try:
            return self._open(plan, store, options, trigger, observers)
        except BaseException:
            observers.close()
            raise

    def _open(
        self, plan: JobPlan, store: ScopedStore, options: RunOptions, trigger: Trigger, observers: Observers
    ) -> Query:
        """Open the run, after all checks."""
        run = Run.open(store, self._job_id, options=options, environment=Environment())
        reporter = RunReporter(run, plan, trigger=str(trigger), metrics=observers.metrics)
        reporter.start()
        try:
            return self._query(plan, store, run, trigger, observers=observers, reporter=reporter)
        except BaseException as failure:
            reporter.failed(failure)
            raise

    def _query(
        self,
        plan: JobPlan,
        store: ScopedStore,
        run: Run,
        trigger: Trigger,
        *,
        observers: Observers,
        reporter: RunReporter,
    ) -> Query:
        """Bring sinks and Spark's checkpoint to the start of the run, and start the query."""
        self._check_continues(plan, run.head, store)
        observers.began(run.head, run.record(run.head.base) if run.head.base in run.chain else None)
        publisher = plan.publisher(run)
        publisher.open()
        folder = projection_folder(
            local_state=plan.local_state, state_url=plan.state_url, job_id=self._job_id, run=run.number
        )
        projection = SparkProjection(folder, store, sources=plan.spark_sources, topic_ids=plan.kafka.topic_ids)
        projection.build(with_offsets(run.head.source_position, plan.kafka.moved))
        controller = Controller(
            plan=plan,
            run=run,
            publisher=publisher,
            projection=projection,
            environment=run.environment,
            observers=observers,
            reads_once=trigger.available_now,
        )
        return Query.start(plan, controller, trigger, checkpoint_location=projection.location, reporter=reporter)

    # ---- called by the streams -------------------------------------------------------------------------------

    def add_sink(
        self,
        stream: JobStream,
        sink: SinkLike,
        *,
        path: str | os.PathLike[str] | None,
        name: str | None,
        key: str | Sequence[str] | None,
        options: Mapping[str, object],
        transforms: Sequence[Transform] = (),
    ) -> None:
        """Add a sink to the job."""
        forwarded = stream.forwarded()
        derived = self._derived_name(forwarded, sink)
        unnamed_rows = self.graph.unnamed_before(forwarded.edge) if name is None else ""
        new_sink = make_sink(
            sink,
            output=forwarded.output,
            operator_id=derived,
            job_id=self._job_id,
            session=self.spark,
            path=os.fspath(path) if isinstance(path, os.PathLike) else path,
            name=name,
            key=key,
            options=options,
            transform=composed(transforms),
            unnamed_rows=unnamed_rows,
        )
        others = [other for other, _ in self._sinks.values()]
        unnamed = new_sink if name is None and isinstance(new_sink, BaseSink) and new_sink.sink_id == derived else None
        if unnamed is not None:
            unnamed.unnamed_rows = unnamed_rows
            if derived in self._sinks and not isinstance(self.graph.nodes[forwarded.edge.node], OperatorNode):
                apart = unnamed.target or self.graph.origin(forwarded.edge)
                unnamed.rename(derived_name([derived], distinguished_by=apart))
        check_places(new_sink, state_url=self._store.url, others=others, where=f"job {self._job_id}")
        self._sinks[new_sink.sink_id] = (new_sink, forwarded.edge)
        if unnamed is not None:
            self._derived.add(new_sink.sink_id)

    def _derived_name(self, stream: JobStream, sink: SinkLike) -> str:
        """Derive the name of a sink from its operator, and after row-wise steps also from its kind."""
        operators = self.graph.outputs_behind(stream.edge)
        if isinstance(self.graph.nodes[stream.edge.node], OperatorNode):
            return derived_name(operators)
        label = sink if isinstance(sink, str) else getattr(sink, "__name__", "")
        if label.isascii() and label.isidentifier():
            return derived_name(operators, label)
        return derived_name(operators, "function", distinguished_by=self.graph.origin(stream.edge))

    def _settle_names(self, run: Run) -> bool:
        """Name each sink without an explicit name as in the log. Return whether any was renamed."""
        derived = []
        for sink_id in sorted(self._derived):
            sink, edge = self._sinks[sink_id]
            assert isinstance(sink, BaseSink)
            job, _, owner = sink.owner_of_target().rpartition("/")
            operators = self.graph.origins_of(edge)
            derived.append(
                DerivedSink(
                    sink_id,
                    operator_id=operators[0] if len(operators) == 1 else "",
                    kind=sink.identity.kind,
                    target=sink.target,
                    owner=owner if job == self._job_id else "",
                )
            )
        chosen = self._sinks.keys() - self._derived
        names = settled_names(derived, chosen=chosen, known=run.known_sinks(), operators=self.graph.operators)
        for sink_id, name in names.items():
            sink = self._sinks[sink_id][0]
            if name != sink_id and isinstance(sink, BaseSink):
                sink.rename(name)
        self._sinks = {sink.sink_id: (sink, edge) for sink, edge in self._sinks.values()}
        self._derived = set(names.values())
        return any(sink_id != name for sink_id, name in names.items())

    # ---- from the graph to a plan ----------------------------------------------------------------------------

    def _settings(self) -> Settings:
        session = self._session or active_session()
        conf = {} if session is None else configuration(session)
        return resolve(self._keywords, spark_conf=conf, environ=os.environ, folder=Path.cwd())

    def _plan(self) -> JobPlan:
        where = f"job {self._job_id}"
        if not self.graph.sources:
            raise InputError(
                "the job has no source",
                where=where,
                fix="for example: job.source(df).group_by('key', sb.tumbling('1 minute')).agg(n=sb.count())",
            )
        if not self._sinks:
            raise InputError(
                "the job has no sink", where=where, fix="for example: results.write('parquet', path='out')"
            )
        check_written(self.dead_letters.values(), where=where)
        session, settings = self.spark, self._settings()
        local_state = Path(self._store.url) if isinstance(self._store, LocalStore) else None
        parallelism = settings.parallelism or check_parallelism(session.sparkContext.defaultParallelism)
        ways = topology(self.graph, self.frames, {name: edge for name, (_, edge) in self._sinks.items()})
        check_shares(settings, [place.operator for place in ways.places], where=where)
        frames = {edge: frame.df for edge, frame in self.frames.items()}
        leaves = {edge: frame.leaves for edge, frame in self.frames.items()}
        feed = feeding(frames, ways.branches, leaves=leaves, splits=self.splits, where=where)
        return JobPlan(
            job_id=self._job_id,
            state_url=self._store.url,
            local_state=local_state,
            parallelism=parallelism,
            session=session,
            graph=self.graph,
            topology=ways,
            prepared=feed.df,
            layouts=feed.layouts,
            spark_sources=feed.sources,
            sinks=tuple(sink for sink, _ in self._sinks.values()),
            settings=settings,
            budget=job_budget(session, settings),
        )

    def _checked_against_log(self, plan: JobPlan, store: ScopedStore, options: RunOptions) -> JobPlan:
        """Check everything that would otherwise be refused after the run is open, when a fork has already happened.

        Complete the plan with the parallelism stored with the state, if no setting has one, and with the memory of the
        hosts.
        """
        log = CheckpointLog(store, self._job_id)
        recovery = log.recover(options.damage, proofs=True)
        if options.origin.is_head and options.damage is DamagePolicy.REFUSE:
            base = recovery.head
        else:
            base = prepare_opening(log, References(log), options).base
        self._check_continues(plan, base, store)
        plan = replace(plan, kafka=kafka_start(plan, None if base is None else base.source_position))
        check_sinks(plan.sinks, recovery, read_again=lambda: log.recover(options.damage, proofs=True))
        plan.publisher(Run.preview(store, self._job_id, options=options)).check()
        probe_put_if_absent(self._store)
        hosts = probe_executors(plan.session, self._store, settings=plan.settings, job_id=self._job_id)
        probe_sinks(plan.sinks)
        chosen = 0 if base is None or plan.settings.parallelism else int(base.chosen_parallelism)
        return replace(
            plan,
            parallelism=chosen or plan.parallelism,
            budget=job_budget(plan.session, plan.settings, available=hosts.min_memory),
        )

    def _check_continues(self, plan: JobPlan, record: pb.CheckpointMetadata | None, store: ScopedStore) -> None:
        check_continues(
            record,
            operators=plan.operators,
            graph=plan.graph,
            store=store,
            job_id=self._job_id,
            removed=plan.removed,
        )


def _with_retention(options: RunOptions, settings: Settings) -> RunOptions:
    """Return the options with the retention of the settings, unless they set one."""
    return replace(options, retention=settings.retention) if options.retention == Retention() else options
