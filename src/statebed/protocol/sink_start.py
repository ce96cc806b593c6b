"""Decision how a run starts with a sink: continue, publish what it lacks, retract epochs, or refuse.

A sink may hold fewer epochs than were published to it: it was restored from a backup, deleted, emptied, moved to
another path, or was not part of the job for some time. It can be brought up to date only while the epochs are retained.
Otherwise the start is refused with the list of missing epochs, unless the user chose what to do.
"""

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from statebed.errors import InputError, RollbackError, SinkStartError
from statebed.format import checkpoint_pb2 as pb
from statebed.protocol.publication import SinkPosition
from statebed.protocol.sink_history import AcceptedLoss, SinkIdentity

NOT_IN_STATE = "append-only results are not kept in state"


class SinkStart(enum.Enum):
    """Choice for a sink that lacks epochs which are no longer retained. Without a choice, the start is refused.

    >>> [choice.value for choice in sb.SinkStart]
    ['rebuild', 'start_empty', 'accept_gap']
    """

    REBUILD = "rebuild"
    """Empty the sink and write it again, from retained epochs if they are complete, else from finished state."""
    START_EMPTY = "start_empty"
    """Continue in the empty target with what was never published; earlier epochs are left out."""
    ACCEPT_GAP = "accept_gap"
    """Keep what the sink has, publish what is retained, and continue without the epochs in between."""


@dataclass(frozen=True)
class SinkFacts:
    """Facts about a sink, from the sink and from the log."""

    sink_id: str
    identity: SinkIdentity
    position: SinkPosition | None
    """Position stored in the sink; epoch 0 if it is empty, None if the sink keeps no position."""
    history: pb.SinkHistory | None
    """History as of the base epoch of the run."""
    common: int
    """Newest epoch that the sink and the lineage share."""
    base: int
    """Epoch that the run builds on."""
    last_number: int
    """Newest number of the log before the run, whether its record exists or was lost."""
    outputs: Sequence[int]
    """Retained epochs of the lineage with rows for the sink, ascending."""
    gone_output: int
    """Newest epoch with rows for the sink that is no longer retained, or 0."""
    oldest: int
    """Oldest retained epoch of the lineage, or 0."""
    published: int
    """Newest epoch that was published to the sink, or 0."""
    foreign: bool = False
    """Whether the log shows that the target's contents were not published by this job."""

    @property
    def absent_since(self) -> int:
        """First epoch that was committed without the sink, or 0."""
        return self.history.absent_since if self.history is not None else 0

    @property
    def excused(self) -> int:
        """Newest epoch that the user gave up for a target at this position, or 0."""
        history = self.history
        return history.accepted if history is not None and history.accepted_from == self.common else 0

    @property
    def lost(self) -> list[int]:
        """Retained epochs with rows that were published to the sink and that its target does not have."""
        return [epoch for epoch in self.outputs if max(self.common, self.excused) < epoch <= self.published]

    @property
    def is_delivered(self) -> bool:
        """Whether the target should hold rows: some were published to it and not given up."""
        return self.gone_output > self.excused or any(
            self.excused < output <= self.published for output in self.outputs
        )


@dataclass(frozen=True)
class SinkPlan:
    """Steps to take with the sink before the first epoch."""

    after: int | None
    """Publish every retained epoch of the lineage after this one, or those without a published marker if None."""
    roll_back_to: int | None = None
    """Retract everything after this epoch first."""
    clear: bool = False
    """Retract everything first."""
    from_state: bool = False
    """Write the finished results of the base epoch after clearing."""
    problem: str = ""
    """Description of what the user gave up, for the log."""
    accepted: AcceptedLoss | None = None
    """Epochs that the user gave up, for later starts."""


def plan_sink(facts: SinkFacts, *, choice: SinkStart | None, rollback_allowed: bool, no_rebuild: str) -> SinkPlan:
    """Decide how the run starts with the sink; raise SinkStartError if it would lose epochs the user has not given up.

    `no_rebuild` tells why the sink's results cannot be computed from state; empty if they can.
    """
    _check_of_this_log(facts)
    held = facts.position.epoch if facts.position else 0
    if not held:
        if facts.identity.keeps_position:
            return _empty(facts, choice, no_rebuild=no_rebuild)
        return _without_position(facts, choice)
    roll_back_to = facts.common if held != facts.common else None
    if roll_back_to is not None and not rollback_allowed:
        raise RollbackError(
            f"sink {facts.sink_id} already has epoch {held}, which this lineage (at epoch {facts.base}) does not "
            "contain",
            fix="allow the rollback (rollback=RollbackPolicy.ALLOW), and correct the sink if it cannot retract rows",
        )
    if roll_back_to is not None and choice is SinkStart.REBUILD and not no_rebuild:
        what = f"sink {facts.sink_id} is rolled back from epoch {held} to {facts.common} by writing it again"
        return SinkPlan(after=facts.base, clear=True, from_state=True, problem=what)
    if facts.absent_since:
        what = (
            f"sink {facts.sink_id} was not part of the job in epochs {facts.absent_since} to {facts.base}; it holds "
            f"epochs up to {facts.common}"
        )
    elif (moved := _old_target(facts)) and facts.lost:
        what = (
            f"sink {facts.sink_id} has another target, which is at epoch {held}: epochs up to {facts.published} were "
            f"published to {moved}"
        )
    elif max(facts.common, facts.excused) < facts.gone_output:
        what = f"sink {facts.sink_id} is at epoch {held}, and {_gone(facts.common + 1, facts)} are no longer retained"
    else:
        return SinkPlan(after=max(facts.common, facts.excused), roll_back_to=roll_back_to)
    plan = _chosen(facts, choice, what, {SinkStart.ACCEPT_GAP: facts.common}, no_rebuild=no_rebuild)
    return plan if plan.clear else replace(plan, roll_back_to=roll_back_to)


def check_removed(
    waiting: Mapping[str, Sequence[int]], *, sinks: Collection[str], abandon: Collection[str], job_id: str
) -> None:
    """Raise SinkStartError if the job lacks a sink with pending epochs, unless the user gave these up."""
    for sink_id, epochs in sorted(waiting.items()):
        if sink_id in sinks or sink_id in abandon or not epochs:
            continue
        raise SinkStartError(
            f"the job no longer has the sink {sink_id}, which is still missing {_epochs(epochs)}",
            where=f"job {job_id}; its sinks are {', '.join(sorted(sinks)) or 'none'}",
            fix=f"add the sink again, under its old name if renamed: write(..., name={sink_id!r}); to give these "
            f"epochs up: job.start(abandon=[{sink_id!r}]), or statebed sql --abandon {sink_id}",
        )


def check_choices(
    choices: Mapping[str, SinkStart],
    abandon: Collection[str],
    skip: Mapping[str, int],
    *,
    sinks: Collection[str],
    newest: int,
    job_id: str,
) -> None:
    """Raise InputError for a choice whose sink the job does not have, a sink to abandon that it still has, or an epoch
    to skip that is after the `newest`.
    """
    for argument, names in (("sinks", choices), ("skip", skip)):
        for sink_id in names:
            if sink_id not in sinks:
                raise InputError(
                    f"{argument}= names {sink_id!r}, which is not a sink of this job",
                    where=f"job {job_id}",
                    fix=f"its sinks are {', '.join(sorted(sinks))}",
                )
    for sink_id, epoch in skip.items():
        if epoch > newest:
            raise InputError(
                f"skip= names epoch {epoch} for the sink {sink_id}, but the newest epoch is {newest}",
                where=f"job {job_id}",
                fix="pass the number of a committed epoch: the one that could not be published",
            )
    for sink_id in abandon:
        if sink_id in sinks:
            raise InputError(
                f"abandon= names {sink_id!r}, which the job still writes to",
                where=f"job {job_id}",
                fix="leave it out of abandon=, or remove the sink from the job",
            )


def _check_of_this_log(facts: SinkFacts) -> None:
    position = facts.position
    if position is None or not (facts.foreign or position.epoch > facts.last_number):
        return
    raise SinkStartError(
        f"sink {facts.sink_id} holds epoch {position.epoch} of run {position.run}, which this job did not publish to "
        f"it (its log ends at {facts.last_number})",
        where=facts.identity.target,
        fix="it was written by another job, or the newest records of this one were lost: give the sink another target, "
        "or restore the state that belongs to it",
    )


def _without_position(facts: SinkFacts, choice: SinkStart | None) -> SinkPlan:
    """Plan a sink without a position: published markers count, as long as the target is unchanged."""
    moved = _old_target(facts)
    if not facts.is_delivered or not moved:
        return SinkPlan(after=None)
    what = f"sink {facts.sink_id} has another target: epochs up to {facts.published} were published to {moved}"
    return _chosen(facts, choice, what, {SinkStart.START_EMPTY: None}, no_rebuild=NOT_IN_STATE)


def _empty(facts: SinkFacts, choice: SinkStart | None, *, no_rebuild: str) -> SinkPlan:
    """Plan a sink that holds nothing."""
    if not facts.is_delivered:
        return SinkPlan(after=facts.excused)
    newest = facts.published or facts.gone_output
    moved = _old_target(facts)
    holds = f"sink {facts.sink_id} holds nothing at its target" + (f" (before, it wrote to {moved})" if moved else "")
    retained = "" if not facts.gone_output else f", and {_gone(1, facts)} are no longer retained"
    what = f"{holds}, though epochs up to {newest} were published to it{retained}"
    ways: dict[SinkStart, int | None] = {SinkStart.START_EMPTY: facts.published, SinkStart.ACCEPT_GAP: 0}
    return _chosen(facts, choice, what, ways, no_rebuild=no_rebuild)


def _chosen(
    facts: SinkFacts,
    choice: SinkStart | None,
    what: str,
    ways: Mapping[SinkStart, int | None],
    *,
    no_rebuild: str,
) -> SinkPlan:
    """Apply the user's choice, or raise SinkStartError with the possible choices."""
    replays = not facts.absent_since and not facts.gone_output and facts.identity.keeps_position
    if choice is not None and choice in ways:
        until = facts.published if choice is SinkStart.START_EMPTY else _last_gone(facts)
        return SinkPlan(after=ways[choice], problem=what, accepted=AcceptedLoss(facts.common, until, choice.value))
    if choice is SinkStart.REBUILD and replays:
        return SinkPlan(after=0, clear=True, problem=what)
    if choice is SinkStart.REBUILD and not no_rebuild:
        return SinkPlan(after=facts.base, clear=True, from_state=True, problem=what)
    offered = [*ways, *([SinkStart.REBUILD] if replays or not no_rebuild else [])]
    if choice is not None:
        what += f"; {choice.value!r} is not possible here"
        if choice is SinkStart.REBUILD:
            what += f": {no_rebuild}, and not all epochs are retained"
    texts = {
        SinkStart.REBUILD: "write it again",
        SinkStart.START_EMPTY: "continue there without the earlier epochs",
        SinkStart.ACCEPT_GAP: "publish what is retained and continue without the rest",
    }
    name = facts.sink_id
    listed = ", or ".join(f"sinks={{{name!r}: {way.value!r}}} to {texts[way]}" for way in offered)
    option = f"; for SQL text, statebed sql --sinks {name}={offered[0].value}" if offered else ""
    raise SinkStartError(
        what,
        where=facts.identity.target,
        fix=f"restore the sink's target as it was; or choose at the start: {listed}{option}",
    )


def _old_target(facts: SinkFacts) -> str:
    """Return the sink's previous target if it differs from the current one, else empty."""
    history = facts.history
    if history is None or not history.target:
        return ""
    same = (history.kind, history.target) == (facts.identity.kind, facts.identity.target)
    return "" if same or not facts.identity.target else f"{history.kind} {history.target}".strip()


def _gone(first: int, facts: SinkFacts) -> str:
    return f"epochs {first} to {_last_gone(facts)}"


def _last_gone(facts: SinkFacts) -> int:
    """Return the newest epoch that can no longer be published to the sink."""
    if facts.absent_since:
        return facts.base
    return max(facts.oldest - 1, facts.gone_output)


def _epochs(epochs: Sequence[int]) -> str:
    ordered = sorted(epochs)
    if len(ordered) == 1:
        return f"epoch {ordered[0]}"
    return f"{len(ordered)} epochs ({ordered[0]} to {ordered[-1]})"
