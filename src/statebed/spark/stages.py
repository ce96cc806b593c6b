"""From a plan, the head and the clocks of an epoch to what its tasks run, level by level. Pure."""

from collections.abc import Mapping
from dataclasses import replace

from statebed.format import checkpoint_pb2 as pb
from statebed.operators import Clock, SubtaskTask
from statebed.spark.compaction import EpochEdits
from statebed.spark.plan import JobPlan
from statebed.spark.preaggregation import Preaggregation
from statebed.spark.reports import operator_entry
from statebed.spark.stage import StageFunction, Work
from statebed.spark.topology import NOTHING, Place


def stages(
    plan: JobPlan, head: pb.CheckpointMetadata, epoch: int, clocks: Mapping[str, Clock], told: EpochEdits
) -> list[StageFunction]:
    """The functions of all levels; the first reads Spark's rows, each other what the one before gives."""
    return [
        StageFunction(
            state_url=plan.state_url,
            works=tuple(_work(plan, head, epoch, clocks, place, told=told) for place in places),
            sources=tuple(plan.graph.sources),
            layouts=plan.layouts if number == 0 else None,
            share=plan.share,
        )
        for number, places in enumerate(plan.topology.levels)
    ]


def of_groups(stage: StageFunction, added_up: Preaggregation) -> StageFunction:
    """The same for rows that were added up before: they come to the second input of the one operator there is."""
    works = tuple(replace(work, branches=((), (added_up.branch,))) for work in stage.works)
    return replace(stage, works=works, layouts={added_up.branch: added_up.layout})


def _work(
    plan: JobPlan,
    head: pb.CheckpointMetadata,
    epoch: int,
    clocks: Mapping[str, Clock],
    place: Place,
    *,
    told: EpochEdits,
) -> Work:
    name = place.operator.operator_id
    task = SubtaskTask(
        job_id=plan.job_id,
        epoch=epoch,
        operator=place.operator,
        subtask_index=0,
        parallelism=plan.parallelism,
        base=tuple(one.SerializeToString(deterministic=True) for one in operator_entry(head, name).subtasks),
        late_us=clocks[name].late_us,
        watermark_us=clocks[name].watermark_us,
        epoch_time_us=clocks[name].epoch_time_us,
        edits=told.edits.get(name, ()),
        merging_epoch=told.merging_epoch.get(name),
        deliveries=place.outgoing or (NOTHING,),
    )
    return Work(task, place.branches, place.routes)
