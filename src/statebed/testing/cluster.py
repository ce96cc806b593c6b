"""All subtasks of a graph's operators in one process: runs, commits, restores and rescales epochs."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import from_numpy, int64_values, uint64_values, validity
from statebed.checkpoint import EpochDraft, Retention, Run, RunOptions
from statebed.flow.clocks import SourceClock, marks_of, operator_clocks, source_entry
from statebed.flow.graph import Edge, Graph, OperatorNode, SourceNode, StepNode
from statebed.flow.steps import with_weights
from statebed.format import checkpoint_pb2 as pb
from statebed.format.ranges import subtask_of
from statebed.format.schema import KEY_HASH, TIME
from statebed.operators.changelog import UNKNOWN_RETRACTIONS
from statebed.operators.operator import MAIN, Clock, StepResult, earlier_tables, upgrade_state
from statebed.state import ManagerOptions, TableManager, TaskInfo, Tiers, operator_entry
from statebed.state.metrics import TableStatistics
from statebed.storage import ObjectStore, ScopedStore
from statebed.subtasks.figures import figures_together, operator_figures

Tables = dict[Edge, pa.Table]
TIMEOUT_SECONDS = 60.0
SOURCE_KIND = "statebed.testing"


@dataclass(frozen=True)
class ClusterSettings:
    """Settings of a run."""

    job_id: str
    retained_epochs: int
    options: ManagerOptions


@dataclass
class EpochResult:
    """Result of an epoch."""

    outputs: Tables
    results: dict[str, StepResult] = field(default_factory=dict)
    """Combined results of all subtasks, by operator."""


class Cluster:
    """Live subtasks of a graph."""

    def __init__(
        self, graph: Graph, store: ObjectStore, tiers: Tiers, parallelism: int, settings: ClusterSettings
    ) -> None:
        self.graph = graph
        self._store = ScopedStore(store, settings.job_id)
        self._tiers = tiers
        self._settings = settings
        self._managers: dict[str, list[TableManager]] = {}
        self.parallelism = parallelism
        self._pending: tuple[dict[str, Clock], int] = ({}, 0)
        self._results: dict[str, StepResult] = {}
        self._rows_out: dict[str, int] = {}
        self._counted: dict[tuple[str, int], Mapping[str, TableStatistics]] = {}
        self.restart(parallelism)

    def restart(self, parallelism: int) -> None:
        """Discard everything in memory, fence the old run, and restore the head."""
        self.close()
        retention = Retention(epochs=self._settings.retained_epochs, reader_grace="0 s")
        self.run = Run.open(self._store, self._settings.job_id, options=RunOptions(retention=retention))
        self.parallelism = parallelism
        self.sources, self._before = _restored(self.graph, self.run.head)
        try:
            for node in self._operators():
                operator = node.operator
                managers = self._managers.setdefault(operator.operator_id, [])
                for index in range(parallelism):
                    task = TaskInfo(self._settings.job_id, operator.operator_id, index, parallelism)
                    managers.append(self._restored_manager(task, node))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close all tables."""
        self._counted = {}
        managers, self._managers = self._managers, {}
        for of_operator in managers.values():
            for manager in of_operator:
                manager.close()

    def epoch(self, fed: Mapping[str, pa.Table], clocks: Mapping[str, SourceClock], epoch_time_us: int) -> EpochResult:
        """Pass rows through the graph; nothing is durable before `commit`."""
        after = operator_clocks(self.graph, clocks, self._before, epoch_time_us=epoch_time_us)
        result = EpochResult({})
        for number, node in enumerate(self.graph.nodes):
            inputs = [result.outputs[edge] for edge in node.inputs]
            if isinstance(node, SourceNode):
                outputs = {MAIN: fed.get(node.name, node.outputs[MAIN].schema.empty_table())}
            elif isinstance(node, StepNode):
                outputs = {MAIN: node.step.apply(inputs[0])}
            elif isinstance(node, OperatorNode):
                clock = after[node.operator.operator_id]
                outputs, result.results[node.operator.operator_id] = self._steps(node, inputs, clock)
                self._rows_out[node.operator.operator_id] = outputs[MAIN].num_rows
            else:
                outputs = {MAIN: pa.concat_tables([with_weights(rows, node.outputs[MAIN]) for rows in inputs])}
            result.outputs |= {Edge(number, name): rows for name, rows in outputs.items()}
        self._pending = (after, epoch_time_us)
        self._results = result.results
        return result

    def commit(self, clocks: Mapping[str, SourceClock]) -> pb.CheckpointMetadata:
        """Make the last epoch durable: the tables of all subtasks, the watermarks and the sources."""
        after, epoch_time_us = self._pending
        waiting = []
        epoch, min_epoch = self.run.next_epoch, self.run.head.min_epoch
        for node in self._operators():
            clock = after[node.operator.operator_id]
            waiting.append(
                [
                    manager.checkpoint(epoch, min_epoch, clock.watermark_us, time=epoch_time_us)
                    for manager in self._managers[node.operator.operator_id]
                ]
            )
        entries = [
            operator_entry([checkpoint.result(TIMEOUT_SECONDS) for checkpoint in checkpoint]) for checkpoint in waiting
        ]
        for entry, node in zip(entries, self._operators(), strict=True):
            result = self._results.get(node.operator.operator_id, StepResult({}))
            clock, definition = after[node.operator.operator_id], node.operator.definition
            entry.fingerprint, entry.definition = definition.fingerprint, definition.described
            entry.rows_in, entry.rows_late = result.rows_in, result.rows_late
            entry.rows_out = self._rows_out.get(node.operator.operator_id, 0)
            entry.inputs.extend(
                pb.InputWatermark(
                    input=input_.name, late_us=clock.late_us, watermark_us=clock.watermark_us, origins=names
                )
                for input_, names in zip(
                    node.operator.inputs, self.graph.origins(node.operator.operator_id), strict=True
                )
            )
        position = pb.SourcePosition(kind=SOURCE_KIND, opaque=_encoded(clocks, marks_of(after)))
        record = self.run.commit(
            EpochDraft(
                operators=entries,
                source_position=position,
                sources=[source_entry(name, source_clock, self.graph) for name, source_clock in clocks.items()],
                epoch_time_us=epoch_time_us,
                parallelism=self.parallelism,
                figures=pb.EpochFigures(
                    operators=[self._figures(node.operator.operator_id) for node in self._operators()]
                ),
            )
        )
        self.sources, self._before = dict(clocks), marks_of(after)
        for node in self._operators():
            if any(input_.broadcast for input_ in node.operator.inputs):
                for manager in self._managers[node.operator.operator_id]:
                    manager.refresh(record)
        return record

    def compact(self) -> None:
        """Compact all files of all tables; the next epoch commits the result."""
        for of_operator in self._managers.values():
            for manager in of_operator:
                manager.compact().result(TIMEOUT_SECONDS)

    def managers(self, operator_id: str) -> list[TableManager]:
        """Return the table managers of an operator's subtasks."""
        return self._managers[operator_id]

    def _figures(self, operator_id: str) -> pb.OperatorFigures:
        """Return the combined counts of an operator's subtasks. Times are not measured here."""
        parts = []
        for index, manager in enumerate(self._managers[operator_id]):
            before, now = self._counted.get((operator_id, index), {}), manager.metrics().tables
            self._counted[operator_id, index] = now
            parts.append(operator_figures(operator_id, StepResult({}), now, before))
        total = figures_together(operator_id, parts)
        counts = self._results.get(operator_id, StepResult({})).counts
        total.retractions_dropped = counts.get(UNKNOWN_RETRACTIONS, 0)
        return total

    def _operators(self) -> list[OperatorNode]:
        return [node for node in self.graph.nodes if isinstance(node, OperatorNode)]

    def _restored_manager(self, task: TaskInfo, node: OperatorNode) -> TableManager:
        return TableManager(
            task,
            node.operator.tables,
            self._store,
            restore_from=self.run.head if self.run.head.operators else None,
            options=self._settings.options,
            tiers=self._tiers,
            combines=node.operator.combines,
            earlier=earlier_tables(node.operator),
        )

    def _steps(
        self, node: OperatorNode, inputs: list[pa.Table], clock: Clock
    ) -> tuple[dict[str, pa.Table], StepResult]:
        """Run the steps of all subtasks, and return their outputs and combined result."""
        fed = [feed.apply(rows) for feed, rows in zip(node.feeds, inputs, strict=True)]
        steps = []
        for index, manager in enumerate(self._managers[node.operator.operator_id]):
            manager.advance(time=clock.epoch_time_us)
            upgrade_state(node.operator, manager, clock)
            mine = [
                (rows if input_.broadcast else _owned_by(rows, index, self.parallelism)).to_batches()
                for input_, rows in zip(node.operator.inputs, fed, strict=True)
            ]
            steps.append(node.operator.step(manager, mine, clock))
        outputs = {
            name: pa.concat_tables([output.schema.empty_table(), *_given(steps, name)])
            for name, output in node.outputs.items()
        }
        return outputs, _together(steps)


def _owned_by(rows: pa.Table, index: int, parallelism: int) -> pa.Table:
    if parallelism == 1:
        return rows
    owners = subtask_of(uint64_values(rows[KEY_HASH]), parallelism)
    return rows.take(from_numpy(np.flatnonzero(owners == index), pa.int64()))


def _given(steps: list[StepResult], output: str) -> list[pa.Table]:
    return [step.outputs[output] for step in steps if output in step.outputs]


def _together(steps: list[StepResult]) -> StepResult:
    counts: dict[str, int] = {}
    for step in steps:
        for name, count in step.counts.items():
            counts[name] = counts.get(name, 0) + count
    return StepResult(
        outputs={},
        rows_in=sum(step.rows_in for step in steps),
        rows_late=sum(step.rows_late for step in steps),
        counts=counts,
    )


def latest_event_time(rows: pa.Table) -> int | None:
    """Return the greatest event time of the rows, or None."""
    known = int64_values(rows[TIME])[validity(rows[TIME])]
    return int(known.max()) if len(known) else None


def _encoded(clocks: Mapping[str, SourceClock], marks: Mapping[str, int | None]) -> bytes:
    sources = {
        name: [clock.watermark_us, clock.max_event_time_us, clock.last_rows_us] for name, clock in clocks.items()
    }
    return json.dumps({"sources": sources, "operators": dict(marks)}).encode()


def _restored(graph: Graph, record: pb.CheckpointMetadata) -> tuple[dict[str, SourceClock], dict[str, int | None]]:
    """Return the clocks of sources and the watermarks of operators from the head."""
    clocks = {name: SourceClock() for name in graph.sources}
    marks: dict[str, int | None] = {}
    if record.source_position.kind == SOURCE_KIND:
        position = json.loads(record.source_position.opaque)
        clocks |= {name: SourceClock(*numbers) for name, numbers in position["sources"].items() if name in clocks}
        marks = position["operators"]
    return clocks, marks
