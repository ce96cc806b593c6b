"""A job as it will run: everything checked, nothing written yet."""

from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from statebed.checkpoint import Guarantee, Sink
from statebed.errors import InputError
from statebed.format import checkpoint_pb2 as pb
from statebed.format.ranges import owned_range
from statebed.operators import MAIN, WindowAggregate
from statebed.spark.frames import EventTime


@dataclass(frozen=True)
class JobPlan:
    """One source, one operator, its sinks."""

    job_id: str
    state_url: str
    local_state: Path | None
    """The state's folder when it is on this machine."""
    memory: str | None
    parallelism: int
    session: SparkSession
    source: str
    event_time: EventTime
    operator: WindowAggregate
    prepared: DataFrame
    """The streaming DataFrame that subtasks are fed from."""
    sinks: tuple[Sink, ...]

    def explain(self) -> str:
        """The plan as text."""
        operator = self.operator
        keys = ", ".join(f"{key.name} {key.type}" for key in operator.keys) or "no key: one subtask has all rows"
        aggregates = ", ".join(f"{one.name} = {one.function.value}({one.text})" for one in operator.aggregates)
        event_time = self.event_time
        share = (owned_range(0, self.parallelism).last + 1) / 2**64
        lines = [
            f"job {self.job_id}",
            f"  state        {self.state_url}",
            f"  parallelism  {self.parallelism} subtasks, each owns {share:.2%} of the key-hash space",
            f"  memory       {self.memory or 'no budget given'} (not enforced by this version)",
            f"  source       {self.source}: event time {event_time.column}, late after {event_time.delay_us / 1e6:g} s",
            f"  operator     {operator.operator_id}: {operator.window.described()} by {keys}",
            f"               {aggregates}",
            f"               gives {', '.join(operator.outputs[MAIN].columns.names)}",
        ]
        lines += [f"  sink         {sink.sink_id}: {_promise(sink.guarantee)}" for sink in self.sinks]
        return "\n".join(lines)

    def check_continues(self, record: pb.CheckpointMetadata | None) -> None:
        """Refuse to go on from a record whose operators are not this plan's."""
        for entry in record.operators if record else ():
            where = f"job {self.job_id}, operator {entry.operator_id}"
            if entry.operator_id != self.operator.operator_id:
                raise InputError(
                    f"the state holds the operator {entry.operator_id!r}, which the job no longer has",
                    where=where,
                    fix=f"keep its name with group_by(..., name={entry.operator_id!r}), or start a job of another name",
                )
            if entry.fingerprint != self.operator.fingerprint:
                raise InputError(
                    "the operator's keys, window or aggregates are not those that its state was written with",
                    where=where,
                    fix="give the changed operator another job name, or restore its definition",
                )
            inputs = [mark.input for mark in entry.inputs]
            if inputs and inputs != [self.source]:
                raise InputError(
                    f"the operator's state was fed by source {inputs[0]!r}, now it is {self.source!r}",
                    where=where,
                    fix=f"keep the name: job.source(df, name={inputs[0]!r})",
                )


def _promise(guarantee: Guarantee) -> str:
    if guarantee is Guarantee.EXACTLY_ONCE:
        return "exactly once"
    return "at least once: after a crash it may see an epoch again, with the same rows and number"
