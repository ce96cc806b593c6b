"""Builds the functions that the tasks of an epoch run, level by level, from the plan, the head and the clocks. Pure."""

from collections.abc import Mapping
from dataclasses import replace

from statebed.format import checkpoint_pb2 as pb
from statebed.operators import Clock
from statebed.spark.compaction.rounds import EpochEdits
from statebed.spark.epoch.epoch_figures import Meter
from statebed.spark.epoch.level_task import LevelOperator, StageFunction
from statebed.spark.epoch.preaggregation import Preaggregation
from statebed.spark.epoch.reports import operator_entry
from statebed.spark.plan.job_plan import JobPlan
from statebed.spark.plan.routing import RouteFunction
from statebed.spark.plan.topology import NOTHING, OperatorPlace
from statebed.subtasks import SubtaskTask


def stages(
    plan: JobPlan,
    head: pb.CheckpointMetadata,
    epoch: int,
    clocks: Mapping[str, Clock],
    edits: EpochEdits,
    *,
    meter: Meter | None = None,
) -> list[StageFunction]:
    """Return the functions of all levels; each reads the output of the previous one, the first the routed rows."""
    return [
        StageFunction(
            state_url=plan.state_url,
            works=tuple(_work(plan, head, epoch, clocks, place, edits=edits) for place in places),
            share=plan.share,
            meter=meter,
        )
        for places in plan.topology.levels
    ]


def of_groups(stage: StageFunction, preaggregation: Preaggregation) -> StageFunction:
    """Return the function for pre-aggregated rows, which go to the second input of the only operator."""
    works = tuple(replace(work, branches=((), (preaggregation.branch,))) for work in stage.works)
    return replace(stage, works=works, groups=preaggregation.placed)


def routing(plan: JobPlan, preaggregation: Preaggregation | None) -> RouteFunction:
    """Return the function that splits the rows of a batch into pieces for the first level."""
    layouts = plan.layouts if preaggregation is None else {preaggregation.branch: preaggregation.layout}
    sources = tuple(plan.graph.sources)
    return RouteFunction(layouts, sources, plan.parallelism, in_order=preaggregation is not None)


def _work(
    plan: JobPlan,
    head: pb.CheckpointMetadata,
    epoch: int,
    clocks: Mapping[str, Clock],
    place: OperatorPlace,
    *,
    edits: EpochEdits,
) -> LevelOperator:
    name = place.operator.operator_id
    task = SubtaskTask(
        job_id=plan.job_id,
        epoch=epoch,
        operator=place.operator,
        subtask_index=0,
        parallelism=plan.parallelism,
        base=tuple(subtask.SerializeToString(deterministic=True) for subtask in operator_entry(head, name).subtasks),
        late_us=clocks[name].late_us,
        watermark_us=clocks[name].watermark_us,
        epoch_time_us=clocks[name].epoch_time_us,
        edits=edits.edits.get(name, ()),
        compacting_epoch=edits.compacting_epoch.get(name),
        deliveries=place.outgoing or (NOTHING,),
        staging=plan.staging(place),
        staged_only=plan.staged_only(place),
    )
    return LevelOperator(task, place.branches, place.routes)
