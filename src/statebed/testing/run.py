"""Test runs of flows."""

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from statebed.aggregates import Aggregate, functions
from statebed.argument_checks import check_whole_number
from statebed.arrays.columns import from_numpy
from statebed.errors import InputError
from statebed.flow import Edge, Flow, Graph, OperatorNode, SourceNode
from statebed.flow.clocks import SourceClock, next_clocks
from statebed.format.schema import TIMESTAMP
from statebed.format.stream_schema import WEIGHT, Changes
from statebed.inspect.tables.broadcast_rows import broadcast_columns
from statebed.inspect.tables.json_text import json_text
from statebed.operators.changelog import consolidated
from statebed.operators.input_rows import exact_cast
from statebed.operators.labels import has_digest
from statebed.operators.window_definition import tumbling
from statebed.operators.windows.function_calls import WindowCall
from statebed.state import CompactionMode, ManagerOptions, MemoryController, Purpose, Tiers
from statebed.state.memory.budget import guarantees_of
from statebed.storage import LocalStore, MemoryStore, ObjectStore
from statebed.testing.cluster import Cluster, ClusterSettings, EpochResult, latest_event_time
from statebed.testing.values import Time, exact_column, micros

Rows: TypeAlias = pa.Table | pa.RecordBatch | Sequence[Mapping[str, Any]]
DEFAULT_MEMORY = 256 << 20


class Runnable(Protocol):
    """A flow, or a job on Spark: anything with a graph."""

    @property
    def name(self) -> str: ...

    @property
    def graph(self) -> Graph: ...


_NUMBER, _AT = "row_number", "row_time"
"""Columns that `evaluate_over` adds to the rows."""


@contextmanager
def run(
    flow: Runnable,
    *,
    parallelism: int = 1,
    memory: int = DEFAULT_MEMORY,
    memory_shares: Mapping[str, float] | None = None,
    store: ObjectStore | None = None,
    compaction: CompactionMode = CompactionMode.IN_LINE,
    retained_epochs: int = 4,
) -> "Iterator[TestRun]":
    """Run a flow in this process, without Spark.

    `memory` is the budget of its state in bytes; `memory_shares` are shares of it reserved for operators or tables.
    """
    if not hasattr(flow, "graph") or not isinstance(getattr(flow, "name", None), str):
        raise InputError(
            f"run takes a flow or a job, got {type(flow).__name__}", fix="write run(flow), with flow = sb.Flow('rides')"
        )
    if store is not None and not hasattr(store, "put_if_absent"):
        raise InputError(
            f"`store` must be an object store, got {store!r}",
            fix="write store=LocalStore('folder'), of statebed.storage, or leave it out to keep the state in memory",
        )
    if memory_shares is not None and not isinstance(memory_shares, Mapping):
        raise InputError(
            f"`memory_shares` must be a dict of shares by operator, got {memory_shares!r}",
            fix="write memory_shares={'per_driver': 0.5}",
        )
    _checked_parallelism(parallelism)
    with tempfile.TemporaryDirectory(prefix="statebed-testing-") as folder:
        guarantees = guarantees_of(memory_shares or {}, memory)
        tiers = Tiers(MemoryController(memory, guarantees=guarantees), folder=Path(folder))
        settings = ClusterSettings(flow.name, retained_epochs, ManagerOptions(compaction=compaction))
        cluster = None
        try:
            cluster = Cluster(flow.graph, store or MemoryStore(), tiers, parallelism, settings)
            yield TestRun(flow, cluster, tiers)
        finally:
            if cluster is not None:
                cluster.close()
            tiers.close()


def evaluate(rows: Sequence[Mapping[str, Any]], /, **aggregates: Aggregate) -> dict[str, Any]:
    """Return the results of aggregates over a few rows, to try them out.

    Types are inferred from the rows. A column `ts` with timestamps is the event time.

    >>> evaluate([{"fare": 7.5}, {"fare": 5.0}], trips=sb.count(), earned=sb.sum("fare"))
    {'trips': 2, 'earned': 12.5}
    """
    table = pa.Table.from_pylist([dict(row) for row in rows])
    timed = "ts" in table.column_names and pa.types.is_timestamp(table.schema.field("ts").type)
    flow = Flow("evaluate")
    source = flow.source("rows", table.schema, watermark=("ts", "0s") if timed else None)
    source.key_by(name="results").agg(**aggregates)
    with run(flow) as test:
        test.feed("rows", table)
        (result,) = test.output("results")
    return {name: result[name] for name in aggregates}


def evaluate_over(rows: Sequence[Mapping[str, Any]], by: str, /, **calls: WindowCall) -> dict[str, list[Any]]:
    """Return the results of window functions over a few rows ordered by `by`, in the order of `rows`.

    >>> evaluate_over([{"price": 5}, {"price": 9}], "price desc", place=sb.row_number())
    {'place': [2, 1]}
    """
    table = pa.Table.from_pylist([dict(row) for row in rows])
    numbers, times = pa.array(range(len(rows)), pa.int64()), pa.array([0] * len(rows), TIMESTAMP)
    table = table.append_column(_NUMBER, numbers).append_column(_AT, times)
    flow = Flow("evaluate")
    source = flow.source("rows", table.schema, watermark=(_AT, "0s"))
    source.group_by(tumbling("1 day"), name="results").over(by, **calls)
    with run(flow) as test:
        test.feed("rows", table)
        test.watermark("1970-01-03T00:00:00Z")
        results = sorted(test.output("results"), key=lambda row: int(row[_NUMBER]))
    return {name: [row[name] for row in results] for name in calls}


def write_example(folder: str | Path) -> None:
    """Write the state of a small job, to try out what reads state: job `rides`, operator `earned`, epochs 2 and 3.

    >>> write_example("state")
    >>> sb.read_state("state", job="rides", operator="earned", epoch=2, results=True).to_arrow().to_pylist()
    [{'driver': 'ann', 'total': 7.5}]
    """
    flow = Flow("rides")
    rides = flow.source("rides", "driver string, fare double, ts timestamp", watermark=("ts", "1 minute"))
    rides.key_by("driver", name="earned").agg(total=functions.sum("fare"))
    with run(flow, store=LocalStore(folder)) as test:
        test.feed("rides", [{"driver": "ann", "fare": 7.5, "ts": "2026-01-01T12:00:00Z"}])
        test.feed("rides", [{"driver": "bob", "fare": 5.0, "ts": "2026-01-01T12:01:00Z"}])


class TestRun:
    """A test run, in which each `feed`, `watermark` and `tick` is an epoch."""

    __test__ = False  # not a test case, despite its name

    def __init__(self, flow: Runnable, cluster: Cluster, tiers: Tiers) -> None:
        self._graph = flow.graph
        self._cluster = cluster
        self._tiers = tiers
        self._now_us = 0
        self._produced: dict[Edge, list[tuple[int, pa.Table]]] = {}
        self._epochs = 0
        self._said = False
        self.counts: Counter[tuple[str, str]] = Counter()
        """Counts by operator and kind: rows_in, rows_late, and those of the operator itself."""

    # ---- what happens ----------------------------------------------------------------------------------------

    def feed(self, source: str, rows: Rows) -> None:
        """Run an epoch with rows of one source."""
        self.feed_all({self._source(source).name: rows})

    def feed_all(self, rows: Mapping[str, Rows]) -> None:
        """Run an epoch with rows of several sources."""
        if not isinstance(rows, Mapping):
            raise InputError(
                f"feed_all takes a dict of rows by source, got {type(rows).__name__}",
                fix="write feed_all({'rides': [...], 'users': [...]})",
            )
        self._epoch({name: self._source_rows(name, source_rows) for name, source_rows in rows.items()})

    def watermark(self, time: Time, *, source: str | None = None) -> None:
        """Run an epoch without rows, with this watermark for one source or for all.

        From then on the test sets watermarks; they are no longer derived from event times.
        """
        self._said = True
        moment = micros(time)
        names = [self._source(source).name] if source is not None else list(self._graph.sources)
        clocks = dict(self._cluster.sources)
        self._epoch({}, clocks | {name: clocks[name].with_watermark(moment) for name in names})

    def tick(self, *, to: Time | None = None, epochs: int = 1) -> None:
        """Run epochs without rows; `to` sets the processing time."""
        if to is not None:
            self._now_us = max(self._now_us, micros(to))
        for _ in range(check_whole_number(epochs, "epochs", where="tick()", fix="write tick(epochs=3)")):
            self._epoch({})

    def crash(self) -> None:
        """Lose everything that is not durable, and restore."""
        self._cluster.restart(self._cluster.parallelism)

    def crash_in(self, source: str, rows: Rows) -> None:
        """Lose an epoch after it was computed and before it was committed, then run it again."""
        fed = {source: self._source_rows(source, rows)}
        self._cluster.epoch(fed, self._clocks(), self._now_us)
        self.crash()
        self._epoch(fed)

    def rescale(self, parallelism: int) -> None:
        """Continue with another number of subtasks."""
        self._cluster.restart(_checked_parallelism(parallelism))

    def compact(self) -> None:
        """Compact all files of the state; the next epoch commits the result."""
        self._cluster.compact()

    def spill(self) -> None:
        """Spill all state that can leave memory to local disk."""
        memory = self._tiers.memory
        with memory.reserve("statebed.testing", Purpose.READS, memory.budget):
            pass

    # ---- what came out ---------------------------------------------------------------------------------------

    def table(self, name: str, *, side: str = "") -> pa.Table:
        """Return all rows of a stream, by the name of its source or operator; for a changelog the net rows."""
        edge = self._edge(name, side)
        output = self._graph.output(edge)
        rows = pa.concat_tables([output.schema.empty_table(), *(rows for _, rows in self._produced.get(edge, []))])
        if output.changes is Changes.CHANGELOG:
            rows = _expanded(consolidated(rows))
        return rows.select(output.columns.names)

    def output(self, name: str, *, side: str = "") -> list[dict[str, Any]]:
        """Return the rows of `table` as Python values."""
        table = self.table(name, side=side)
        try:
            rows: list[dict[str, Any]] = table.to_pylist()
        except (OverflowError, ValueError) as error:
            raise InputError(
                f"a value cannot be shown as a Python object: {error}",
                where=f"the rows of {name!r}",
                fix=f"use table({name!r}), which returns Arrow; Python's times end with the year 9999",
            ) from error
        return rows

    def discard_rows(self) -> None:
        """Discard the rows of all streams so far, which a run keeps in memory so that `output` can return them.

        A long test that calls this after each epoch holds no more than its state.
        """
        self._produced.clear()

    def late(self, name: str) -> list[dict[str, Any]]:
        """Return the late rows of an operator."""
        return self.output(name, side="late")

    def changes(self, name: str, *, side: str = "") -> pa.Table:
        """Return all rows as they were emitted, with `_time`, the epoch and, in a changelog, `_weight`.

        Epochs are counted from 0, the first one of this run.
        """
        edge = self._edge(name, side)
        schema = self._graph.output(edge).schema
        pieces = [
            piece.append_column("epoch", from_numpy(np.full(piece.num_rows, number), pa.int64()))
            for number, piece in self._produced.get(edge, [])
        ]
        empty = schema.append(pa.field("epoch", pa.int64())).empty_table()
        return pa.concat_tables([empty, *pieces])

    def state(self, operator: str, table: str) -> pa.Table:
        """Return all rows of a table of an operator; a broadcast table has its columns, nested ones as JSON."""
        node = self._operator(operator)
        if table not in list(node.operator.tables):
            raise InputError(f"{operator!r} has no table {table!r}", fix=f"its tables are {list(node.operator.tables)}")
        kind = node.operator.tables[table].WhichOneof("kind")
        if kind == "global_keyed":
            items = list(self._cluster.managers(operator)[0].get_global_keyed_state(table).items())
            broadcast = broadcast_columns(node.operator.definition.described, table)
            if broadcast is not None:
                return pa.Table.from_arrays(broadcast.arrays(items), schema=broadcast.schema)
            texts = [[json_text(part) for part in item] for item in items]
            return pa.table({"key": [key for key, _ in texts], "value": [value for _, value in texts]})
        keyed = kind == "keyed"
        pieces = []
        for manager in self._cluster.managers(operator):
            pieces += list(manager.get_keyed(table).scan()) if keyed else [manager.get_time_keyed(table).read()]
        return pa.concat_tables(pieces) if pieces else pa.table({})

    def state_rows(self, operator: str) -> int:
        """Return the number of rows in all tables of an operator."""
        return sum(self.state(operator, table).num_rows for table in self._operator(operator).operator.tables)

    @property
    def memory_used(self) -> int:
        """Number of bytes charged to the budget now."""
        return self._tiers.memory.used

    @property
    def epoch(self) -> int:
        """Number of the last committed epoch."""
        return self._cluster.run.head.epoch

    # ---- inside ----------------------------------------------------------------------------------------------

    def _epoch(self, fed: Mapping[str, pa.Table], clocks: Mapping[str, SourceClock] | None = None) -> None:
        clocks = clocks or self._clocks()
        result = self._cluster.epoch(fed, clocks, self._now_us)
        latest = {name: latest_event_time(rows) for name, rows in fed.items()}
        self._cluster.commit(
            {name: clock.seen(latest.get(name), epoch_time_us=self._now_us) for name, clock in clocks.items()}
        )
        self._keep(result)

    def _clocks(self) -> dict[str, SourceClock]:
        """Return the clocks of the next epoch, from earlier event times or as set by the test."""
        clocks = self._cluster.sources
        if self._said:
            return dict(clocks)
        return next_clocks(self._graph, clocks)

    def _keep(self, result: EpochResult) -> None:
        for edge, rows in result.outputs.items():
            self._produced.setdefault(edge, []).append((self._epochs, rows))
        self._epochs += 1
        for operator, step in result.results.items():
            numbers = {"rows_in": step.rows_in, "rows_late": step.rows_late, **step.counts}
            for kind, number in numbers.items():
                self.counts[operator, kind] += number

    def _edge(self, name: str, side: str) -> Edge:
        edge = self._named(name)
        if not side:
            return edge
        outputs = self._graph.nodes[edge.node].outputs
        if not isinstance(side, str) or side not in outputs:
            there = [output for output in outputs if output]
            raise InputError(
                f"{name!r} has no output {side!r}",
                fix=f"its other outputs are {there}" if there else "only operators have other outputs",
            )
        return Edge(edge.node, side)

    def _named(self, name: str) -> Edge:
        """Return the stream with this name; raise InputError if there is none."""
        if not isinstance(name, str) or name not in self._graph.names:
            named = sorted(there for there in self._graph.names if not has_digest(there))
            raise InputError(
                f"the flow has no part {name!r}",
                fix=f"there are {named}; an operator is called by its name, as in key_by('driver', name='per_driver')",
            )
        return self._graph.names[name]

    def _operator(self, name: str) -> OperatorNode:
        """Return the operator with this name; raise InputError if there is none."""
        node = self._graph.nodes[self._named(name).node]
        if not isinstance(node, OperatorNode):
            raise InputError(
                f"{name!r} is not an operator and has no state",
                fix=f"use one of {sorted(there for there in self._graph.operators if not has_digest(there))}",
            )
        return node

    def _source(self, name: str) -> SourceNode:
        if not isinstance(name, str) or name not in self._graph.sources:
            raise InputError(f"the flow has no source {name!r}", fix=f"there are {sorted(self._graph.sources)}")
        return self._graph.sources[name]

    def _source_rows(self, name: str, rows: Rows) -> pa.Table:
        """Return the rows with the source's columns and their event time."""
        node = self._source(name)
        table = rows if isinstance(rows, pa.Table | pa.RecordBatch) else _from_rows(rows, node)
        missing = [column for column in table.schema.names if column not in node.columns.names]
        if missing:
            raise InputError(
                f"the source {name!r} has no columns {missing}", fix=f"its columns are {node.columns.names}"
            )
        where = f"rows for the source {name!r}"
        columns = [
            exact_cast(table.column(field.name), field, where=where)
            if field.name in table.schema.names
            else pa.nulls(table.num_rows, field.type)
            for field in node.columns
        ]
        times = pa.nulls(table.num_rows, TIMESTAMP)
        if node.event_time is not None:
            column = columns[node.columns.names.index(node.event_time)]
            times = exact_cast(column, pa.field(node.event_time, TIMESTAMP), where=where)
        return pa.Table.from_arrays([*columns, times], schema=node.outputs[""].schema)


def _checked_parallelism(parallelism: int) -> int:
    if check_whole_number(parallelism, "parallelism", fix="pass an int, for example 2") < 1:
        raise InputError(f"`parallelism` must be at least 1, got {parallelism}", fix="pass for example 2")
    return parallelism


def _from_rows(fed: Iterable[Mapping[str, Any]], node: SourceNode) -> pa.Table:
    """Convert Python rows; times may be ISO text."""
    columns: dict[str, pa.Array] = {}
    rows = list(fed) if isinstance(fed, Iterable) else [fed]
    wrong = [row for row in rows if not isinstance(row, Mapping)]
    if wrong or isinstance(fed, Mapping):
        raise InputError(
            f"rows are a list of dicts or an Arrow table, got {type(fed).__name__}"
            + (f" with {wrong[0]!r}" if isinstance(fed, list | tuple) else ""),
            where=f"rows for the source {node.name!r}",
            fix="write feed('rides', [{'driver': 'ann', 'fare': 7.5}])",
        )
    unknown = sorted({name for row in rows for name in row} - set(node.columns.names))
    if unknown:
        known = node.columns.names
        raise InputError(f"the source {node.name!r} has no columns {unknown}", fix=f"its columns are {known}")
    for field in node.columns:
        values = [row.get(field.name) for row in rows]
        if pa.types.is_timestamp(field.type):
            local = field.type.tz is None
            try:
                moments = [None if value is None else micros(value, local=local) for value in values]
            except InputError as error:
                where = f"rows for the source {node.name!r}, column {field.name!r}"
                raise InputError(error.what, where=where, fix=error.fix) from error
            columns[field.name] = pa.array(moments, pa.int64()).cast(TIMESTAMP)
        else:
            columns[field.name] = exact_column(field, values, where=f"rows for the source {node.name!r}")
    return pa.table(columns)


def _expanded(rows: pa.Table) -> pa.Table:
    """Repeat each row according to its weight."""
    weights = rows[WEIGHT].combine_chunks()
    counts = np.asarray(weights.to_numpy(zero_copy_only=False), dtype=np.int64)
    if (counts < 0).any():
        taken = rows.take(from_numpy(np.flatnonzero(counts < 0), pa.int64())).slice(0, 3).to_pylist()
        raise InputError(
            f"more rows were retracted than inserted: {taken}", fix="changes() shows all rows as they were emitted"
        )
    return rows.take(from_numpy(np.repeat(np.arange(rows.num_rows, dtype=np.int64), counts), pa.int64()))
