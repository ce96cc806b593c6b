"""Takeover of the checkpoint of Spark's own query: its offsets, its watermark and its state.

The first epoch of the job is written without any input. It has the source position that Spark has committed, so the job
reads the next batch that Spark would have read. It also has the groups or keys of Spark's state store, which Spark's
own reader (`statestore`) reads, one state partition at a time. A stateless query has only the position. A job that
already has epochs is left as it is: a program that takes over may be started again.
"""

import json
import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructField, StructType

from statebed.arrays.columns import from_numpy, one_chunk
from statebed.checkpoint import CheckpointLog, EpochDraft, Run
from statebed.errors import InputError
from statebed.flow.clocks import SourceClock, source_entry
from statebed.flow.steps import key_hashes
from statebed.format import checkpoint_pb2 as pb
from statebed.format.names import job_folder
from statebed.format.ranges import subtask_of
from statebed.format.schema import TIME, TIMESTAMP
from statebed.operators import WindowAggregate
from statebed.operators.forward import Forward
from statebed.operators.keyed_rows import state_keys
from statebed.operators.labels import operator_label
from statebed.operators.operator import Operator
from statebed.operators.updating.aggregate import GROUPS, LATEST, UpdatingAggregate
from statebed.operators.updating.deduplicate import ROW_TIME, SEEN, Deduplicate
from statebed.operators.windows.aggregate import PARTIALS
from statebed.queries.relation import NEVER_US
from statebed.queries.spark_buffers import Buffers, keys_of, partials_of
from statebed.spark.checkpoint.folder import SparkProjection
from statebed.spark.plan.job_plan import JobPlan
from statebed.state import TableManager, TaskInfo, Tiers, operator_entry
from statebed.storage import ObjectStore, ScopedStore
from statebed.storage.paths import local_path
from statebed.subtasks.subtask import OPTIONS

_log = logging.getLogger(__name__)
_POLICY = "spark.sql.streaming.multipleWatermarkPolicy"
_TIMEOUT_SECONDS = 3_600.0
UNCHANGED = "take over with the query that wrote the checkpoint, unchanged"


def take_over(plan: JobPlan, state: ObjectStore, checkpoint: str | Path) -> None:
    """Write the first epoch of a job from the checkpoint folder of Spark's own query."""
    folder = _local(checkpoint)
    store = ScopedStore(state, job_folder(plan.job_id))
    if CheckpointLog(store, plan.job_id).recover().head is not None:
        _log.info("job %s has epochs of its own: the checkpoint %s is not read", plan.job_id, folder)
        return
    where = f"checkpoint {folder}"
    committed = CommittedBatch.read(folder)
    operator = _stateful_operator(plan, where=where)
    _check_sources(plan, committed, where=where)
    partitions: Iterator[pa.Table] = iter(())
    if operator is None:
        _check_stateless(folder, where=where)
    else:
        _check_policy(plan, committed, where=where)
        partitions = _state(plan.session, folder, committed.number, operator, where=where)
    run = Run.open(store, plan.job_id)
    projection = SparkProjection(folder, store, sources=plan.spark_sources)
    position = projection.position(
        epoch=run.next_epoch,
        query_id=str(uuid.uuid4()),
        batch_id=committed.number,
        spark_version=plan.session.version,
    )
    position.observed.extend(_observed(plan, committed))
    entries = [
        _written(plan, each, run, partitions if each is operator else iter(()), committed, where=where)
        for each in plan.operators.values()
    ]
    now_us = run.environment.now_us()
    run.commit(
        EpochDraft(
            operators=entries,
            source_position=position,
            sources=[source_entry(name, SourceClock(last_rows_us=now_us), plan.graph) for name in plan.graph.sources],
            epoch_time_us=now_us,
            parallelism=plan.parallelism,
            status=pb.STOPPED,
        )
    )


@dataclass(frozen=True)
class CommittedBatch:
    """The newest batch that Spark has committed."""

    number: int
    settings: Mapping[str, str]
    watermark_ms: int
    """Watermark by which the batch has dropped state."""
    next_watermark_ms: int
    """Watermark of the following batch."""
    offsets: tuple[str, ...]
    """Offsets of the sources, in Spark's order."""

    @classmethod
    def read(cls, folder: Path) -> "CommittedBatch":
        """Read Spark's logs."""
        numbers = [int(path.name) for path in (folder / "commits").glob("*") if path.name.isdigit()]
        if not numbers:
            raise InputError(
                "Spark has committed no batch",
                where=f"checkpoint {folder}",
                fix="pass the checkpointLocation of a query that has run, or start the job without it",
            )
        number = max(numbers)
        version, header, *offsets = (folder / "offsets" / str(number)).read_text(encoding="utf-8").split("\n")
        commit = (folder / "commits" / str(number)).read_text(encoding="utf-8").split("\n")
        if version != "v1":
            raise InputError(
                f"the offset log has the version {version!r}",
                where=f"checkpoint {folder}",
                fix="only version v1 of Spark's offset log can be taken over",
            )
        metadata = json.loads(header)
        return cls(
            number,
            metadata.get("conf", {}),
            int(metadata.get("batchWatermarkMs", 0)),
            int(json.loads(commit[1]).get("nextBatchWatermarkMs", 0)),
            tuple(offsets),
        )


def _local(checkpoint: str | Path) -> Path:
    text = local_path(str(checkpoint))
    folder = Path(text)
    if "://" in text:
        raise InputError(
            f"a checkpoint of Spark must be in a local folder, got {text!r}",
            where="take_over",
            fix="copy the folder to a local disk first",
        )
    if not (folder / "offsets").is_dir():
        raise InputError(
            f"the folder {text!r} has no checkpoint of Spark",
            where="take_over",
            fix="pass the checkpointLocation of the query, which has the subfolders offsets and commits",
        )
    return folder


def _stateful_operator(plan: JobPlan, *, where: str) -> Operator | None:
    """Return the operator that takes the state over; None if the query is stateless, and only rows pass through it."""
    operators = {name: each for name, each in plan.operators.items() if not isinstance(each, Forward)}
    if not operators:
        return None
    if len(operators) != 1:
        raise InputError(
            f"the query has {len(operators)} stateful steps: {', '.join(operators)}",
            where=where,
            fix="a query with at most one aggregation or deduplication can be taken over; start others at the "
            "beginning of their input",
        )
    (operator,) = operators.values()
    if isinstance(operator, WindowAggregate):
        if operator.window.slide_us != operator.window.width_us:
            raise InputError(
                "the query has sliding windows, whose state Spark keeps per window and statebed per slide",
                where=where,
                fix="start the query at the beginning of the oldest open window",
            )
        if operator.window.width_us == 1:
            raise InputError(
                "the query groups by the event time itself, or by a window in rollup, cube or grouping sets",
                where=where,
                fix="start the query at the beginning of its input",
            )
        return operator
    if isinstance(operator, UpdatingAggregate) and operator.entries:
        raise InputError(
            "the query has aggregates over all values, such as count(distinct)",
            where=where,
            fix="start the query at the beginning of its input",
        )
    if isinstance(operator, UpdatingAggregate | Deduplicate):
        return operator
    raise InputError(
        f"the state of {operator_label(operator)} cannot be taken over",
        where=where,
        fix="aggregations by key or tumbling window and deduplications can; start others at the beginning of their "
        "input",
    )


def _check_stateless(folder: Path, *, where: str) -> None:
    if any((folder / "state").glob("*")):
        raise InputError("the checkpoint has state, but the query has no stateful step", where=where, fix=UNCHANGED)


def _check_sources(plan: JobPlan, committed: CommittedBatch, *, where: str) -> None:
    if len(committed.offsets) != 1 or len(plan.spark_sources) != 1:
        raise InputError(
            f"the checkpoint has offsets of {len(committed.offsets)} streams, and the query reads "
            f"{len(plan.spark_sources)}",
            where=where,
            fix="a query that reads one stream once can be taken over",
        )


def _check_policy(plan: JobPlan, committed: CommittedBatch, *, where: str) -> None:
    policy = committed.settings.get(_POLICY, "min").lower()
    clocks = set(plan.graph.spark_clocks.values())
    if any(clock.policy != policy for clock in clocks):
        raise InputError(
            f"the checkpoint was written with {_POLICY}={policy}",
            where=where,
            fix=f"spark.conf.set({_POLICY!r}, {policy!r}) before the query is built",
        )
    if not plan.graph.spark_clocks and committed.next_watermark_ms:
        raise InputError(
            "the query has its own clock, but the state follows Spark's watermark",
            where=where,
            fix="leave out clock='statebed'",
        )


def _observed(plan: JobPlan, committed: CommittedBatch) -> Iterator[pb.ObservedEventTime]:
    """Yield event times from which the watermark of Spark's next batch follows."""
    for watermark in plan.graph.spark_watermarks:
        latest = committed.next_watermark_ms + watermark.delay_ms if committed.next_watermark_ms else None
        yield pb.ObservedEventTime(max_ms=latest)


# ---- state -----------------------------------------------------------------------------------------------------------


def _state(session: SparkSession, folder: Path, batch: int, operator: Operator, *, where: str) -> Iterator[pa.Table]:
    """Yield the rows of Spark's state store, one state partition at a time; check them first."""
    metadata = session.read.format("state-metadata").load(str(folder)).collect()
    steps = {int(row.operatorId): str(row.operatorName) for row in metadata}
    wanted = {"dedupe", "dedupeWithinWatermark"} if isinstance(operator, Deduplicate) else {"stateStoreSave"}
    if len(steps) != 1 or not set(steps.values()) <= wanted:
        raise InputError(
            f"the checkpoint has the state of {', '.join(steps.values()) or 'no step'}, but the query needs that of "
            f"{' or '.join(sorted(wanted))}",
            where=where,
            fix=UNCHANGED,
        )
    state = session.read.format("statestore").option("batchId", batch).load(str(folder))
    columns = [F.col(name).cast(_numbered(state.schema[name].dataType)).alias(name) for name in ("key", "value")]
    chosen = state.select(*columns)
    schema = chosen.limit(0).toArrow().schema
    _rows(operator, pa.table({field.name: pa.nulls(1, field.type) for field in schema}), where=where)
    numbers = {int(row.numPartitions) for row in metadata}
    return (state.where(f"partition_id = {number}").select(*columns).toArrow() for number in range(max(numbers)))


def _numbered(kind: DataType) -> StructType:
    """Return a struct whose fields have distinct names: two sums have buffers of the same name."""
    assert isinstance(kind, StructType)
    return StructType([StructField(f"{field.name}#{place}", field.dataType) for place, field in enumerate(kind.fields)])


def _written(
    plan: JobPlan,
    operator: Operator,
    run: Run,
    partitions: Iterator[pa.Table],
    committed: CommittedBatch,
    *,
    where: str,
) -> pb.OperatorEntry:
    """Write the state into the tables of all subtasks; return the entry for the record."""
    watermark_us = committed.watermark_ms * 1_000 if plan.graph.spark_clocks else None
    tiers, managers = Tiers.shared(), []
    now_us = run.environment.now_us()
    try:
        for index in range(plan.parallelism):
            task = TaskInfo(plan.job_id, operator.operator_id, index, plan.parallelism)
            managers.append(
                TableManager(task, operator.tables, run.store, options=OPTIONS, tiers=tiers, combines=operator.combines)
            )
            managers[-1].advance(time=now_us)
        for rows in partitions:
            if rows.num_rows:
                _put(operator, managers, rows.combine_chunks(), where=where)
        waiting = [
            manager.checkpoint(run.next_epoch, 0, watermark_us, then_stop=True, time=now_us) for manager in managers
        ]
        entry = operator_entry([checkpoint.result(_TIMEOUT_SECONDS) for checkpoint in waiting])
    finally:
        for manager in managers:
            manager.close()
    entry.fingerprint, entry.definition = operator.definition.fingerprint, operator.definition.described
    entry.inputs.extend(
        pb.InputWatermark(input=input_.name, late_us=watermark_us, watermark_us=watermark_us, origins=names)
        for input_, names in zip(operator.inputs, plan.graph.origins(operator.operator_id), strict=True)
    )
    return entry


def _put(operator: Operator, managers: list[TableManager], rows: pa.Table, *, where: str) -> None:
    """Write rows of Spark's state into the tables of the subtasks that own them."""
    stored, keys = _rows(operator, rows, where=where)
    hashes = key_hashes([one_chunk(stored[name]) for name in keys], stored.num_rows).view(np.uint64)
    owners = subtask_of(hashes, len(managers))
    for index, manager in enumerate(managers):
        mine = stored.take(from_numpy(np.flatnonzero(owners == index), pa.int64()))
        if not mine.num_rows:
            continue
        if isinstance(operator, WindowAggregate):
            manager.get_time_keyed(PARTIALS).append(mine.sort_by(TIME))
            continue
        assert isinstance(operator, UpdatingAggregate | Deduplicate)
        is_aggregate = isinstance(operator, UpdatingAggregate)
        fields = operator.state_keys if isinstance(operator, UpdatingAggregate) else state_keys(operator.input)
        names = [field.name for field in fields]
        times = None if is_aggregate or operator.ttl is None else one_chunk(mine[ROW_TIME])
        view = manager.get_keyed(GROUPS if is_aggregate else SEEN)
        view.upsert(mine.select(names), mine.drop_columns(names), times=times)


def _rows(operator: Operator, rows: pa.Table, *, where: str) -> tuple[pa.Table, Sequence[str]]:
    """Return rows of an operator's table, and the columns whose hash decides which subtask owns them."""
    key, value = one_chunk(rows["key"]), one_chunk(rows["value"])
    if isinstance(operator, WindowAggregate):
        return _window_rows(operator, key, value, where=where), operator.key_names
    if isinstance(operator, UpdatingAggregate):
        return _group_rows(operator, key, value, where=where), [field.name for field in operator.keys]
    assert isinstance(operator, Deduplicate)
    return _seen_rows(operator, key, value, where=where), operator.input.keys


def _window_rows(operator: WindowAggregate, key: pa.Array, value: pa.Array, *, where: str) -> pa.Table:
    places = [place for place, field in enumerate(key.type) if _is_window(field.type)]
    if len(places) != 1:
        raise InputError("the key of the state has no window", where=where, fix="group by window(...) itself")
    starts = pc.struct_field(pc.struct_field(key, places[0]), 0)
    others = [field for place, field in enumerate(key.type) if place != places[0]]
    rest = _struct([pc.struct_field(key, place) for place in range(len(key.type)) if place != places[0]], others)
    keys = keys_of(rest, operator.keys, where=where)
    columns = [*keys, pc.cast(starts, TIMESTAMP), *partials_of(operator.partials, _buffers(value, where))]
    names = [*operator.key_names, TIME, *(field.name for field in operator.partials.fields)]
    return pa.table(dict(zip(names, columns, strict=True)))


def _group_rows(operator: UpdatingAggregate, key: pa.Array, value: pa.Array, *, where: str) -> pa.Table:
    names = [field.name for field in operator.keys]
    named = dict(zip(names, keys_of(key, operator.keys, where=where), strict=True))
    if not named:
        named = {field.name: pa.nulls(len(value), field.type) for field in operator.state_keys}
    named[LATEST] = pa.nulls(len(value), TIMESTAMP)
    partials = partials_of(operator.partials, _buffers(value, where))
    named |= dict(zip((field.name for field in operator.partials.fields), partials, strict=True))
    return pa.table(named)


def _seen_rows(operator: Deduplicate, key: pa.Array, value: pa.Array, *, where: str) -> pa.Table:
    fields = [operator.input.columns.field(name) for name in operator.input.keys]
    keys = keys_of(key, fields, where=where)
    named = dict(zip(operator.input.keys, keys, strict=True))
    expiries = [pc.struct_field(value, place) for place, field in enumerate(value.type) if "expires" in field.name]
    timed = [column for column in keys if column.type == TIMESTAMP]
    if operator.ttl is None:
        times = pa.nulls(len(key), TIMESTAMP)
    elif expiries:
        times = pc.cast(pc.subtract(pc.cast(expiries[0], pa.int64()), operator.ttl.span_us), TIMESTAMP)
    elif len(timed) == 1:
        times = pc.fill_null(timed[0], pa.scalar(NEVER_US, TIMESTAMP))
    else:
        raise InputError("the event time is not the only time among the keys", where=where, fix=UNCHANGED)
    named[ROW_TIME] = times
    return pa.table(named)


def _buffers(value: pa.Array, where: str) -> Buffers:
    columns = [(field.name, one_chunk(pc.struct_field(value, place))) for place, field in enumerate(value.type)]
    return Buffers(columns, len(value), where)


def _is_window(kind: pa.DataType) -> bool:
    return pa.types.is_struct(kind) and [field.name for field in kind] == ["start", "end"]


def _struct(columns: list[pa.Array], fields: list[pa.Field]) -> pa.Array:
    return pa.StructArray.from_arrays(columns, fields=fields)
