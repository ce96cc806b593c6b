"""How a run begins with a sink: go on, publish what it lacks, take epochs back, or refuse.

A sink that holds fewer epochs than were published to it (restored from a backup, deleted, emptied, given another path,
away from the job for some time) can be brought up to date only while the epochs are retained. Otherwise the start is
refused and names the epochs that are gone, unless the user chose what to do about it.
"""

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from statebed.errors import InputError, RollbackError, SinkStartError
from statebed.format import checkpoint_pb2 as pb
from statebed.protocol.publication import SinkPosition
from statebed.protocol.sink_history import AcceptedLoss, SinkIdentity

NOT_IN_STATE = "results that are only added are not kept in state"


class SinkStart(enum.Enum):
    """What to do with a sink that lacks epochs. Without such a choice, and only then, the start is refused."""

    REBUILD = "rebuild"
    """Empty the sink and write it anew: from retained epochs if they are all there, else from finished state."""
    START_EMPTY = "start_empty"
    """Go on in the empty place with what was never published; earlier epochs are left out."""
    ACCEPT_GAP = "accept_gap"
    """Keep what the sink has, publish what is retained, and go on without the epochs in between."""


@dataclass(frozen=True)
class SinkFacts:
    """One sink, and what the log knows of it."""

    sink_id: str
    identity: SinkIdentity
    position: SinkPosition | None
    """What the sink remembers; epoch 0 means that it is empty."""
    history: pb.SinkHistory | None
    """As of the epoch that the run builds on."""
    common: int
    """Newest epoch that the sink and the lineage share."""
    base: int
    """The epoch that the run builds on."""
    last_number: int
    """Newest number of the log before the run, whether its record is there or was lost."""
    outputs: Sequence[int]
    """Retained epochs of the lineage with rows for it, ascending."""
    gone_output: int
    """Newest epoch with rows for it that is no longer retained; 0: none."""
    oldest: int
    """Oldest retained epoch of the lineage; 0: none is."""
    published: int
    """Newest epoch that was published to it; 0: none."""
    foreign: bool = False
    """Whether the log shows that what the target holds was not published by this job."""

    @property
    def absent_since(self) -> int:
        """First epoch that was committed without the sink; 0: none was."""
        return self.history.absent_since if self.history is not None else 0

    @property
    def excused(self) -> int:
        """Up to this epoch the user gave up what a target at this epoch lacks; at another one nothing is excused."""
        history = self.history
        return history.accepted if history is not None and history.accepted_from == self.common else 0

    @property
    def is_delivered(self) -> bool:
        """Whether the target should hold rows: some were published to it that nobody gave up."""
        return self.gone_output > self.excused or any(self.excused < one <= self.published for one in self.outputs)


@dataclass(frozen=True)
class SinkPlan:
    """What to do with the sink before the first epoch."""

    after: int | None
    """It gets every retained epoch of the lineage after this one; None: those without a published marker."""
    roll_back_to: int | None = None
    """Take back everything after this epoch first."""
    clear: bool = False
    """Take back everything first."""
    from_state: bool = False
    """Then write the finished results of the base epoch."""
    problem: str = ""
    """What the user gave up, for the log."""
    accepted: AcceptedLoss | None = None
    """What the user gave up, for later starts."""


def plan_sink(facts: SinkFacts, *, choice: SinkStart | None, rollback_allowed: bool, no_rebuild: str) -> SinkPlan:
    """Decide how the run begins with the sink; SinkStartError if it would lose epochs that nobody gave up.

    `no_rebuild` says why its results cannot be computed from state; empty if they can.
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
            fix="ask for the rollback (rollback=RollbackPolicy.ALLOW), and correct the sink where it cannot take rows "
            "back",
        )
    if roll_back_to is not None and choice is SinkStart.REBUILD and not no_rebuild:
        what = f"sink {facts.sink_id} goes back from epoch {held} to {facts.common} by being written anew"
        return SinkPlan(after=facts.base, clear=True, from_state=True, problem=what)
    if facts.absent_since:
        what = (
            f"sink {facts.sink_id} was not part of the job in epochs {facts.absent_since} to {facts.base}; it holds "
            f"epochs up to {facts.common}"
        )
    elif (moved := _old_target(facts)) and any(
        max(facts.common, facts.excused) < epoch <= facts.published for epoch in facts.outputs
    ):
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
    """Refuse a job without a sink that still waits for epochs, unless the user gave these up."""
    for sink_id, epochs in sorted(waiting.items()):
        if sink_id in sinks or sink_id in abandon or not epochs:
            continue
        raise SinkStartError(
            f"the job no longer has the sink {sink_id}, which has not got {_epochs(epochs)}",
            where=f"job {job_id}; its sinks are {', '.join(sorted(sinks)) or 'none'}",
            fix=f"write it as before, or under its old name if it was renamed: write(..., name={sink_id!r}); to give "
            f"these epochs up: job.start(abandon=[{sink_id!r}]), without Spark Publisher(..., abandon=[{sink_id!r}])",
        )


def check_choices(
    choices: Mapping[str, SinkStart], abandon: Collection[str], *, sinks: Collection[str], job_id: str
) -> None:
    """Refuse choices for sinks that the job does not have, and sinks to abandon that it has."""
    for sink_id in choices:
        if sink_id not in sinks:
            raise InputError(
                f"sinks= names {sink_id!r}, which is no sink of this job",
                where=f"job {job_id}",
                fix=f"its sinks are {', '.join(sorted(sinks))}",
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
    """Plan a sink that cannot say what it has: published markers count, as long as it writes to the same place."""
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
    """Do what the user chose, or refuse and list what can be chosen."""
    replays = not facts.absent_since and not facts.gone_output and facts.identity.keeps_position
    if choice is not None and choice in ways:
        until = facts.published if choice is SinkStart.START_EMPTY else _last_gone(facts)
        return SinkPlan(after=ways[choice], problem=what, accepted=AcceptedLoss(held=facts.common, until=until))
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
        SinkStart.REBUILD: "write it anew",
        SinkStart.START_EMPTY: "go on there without the earlier epochs",
        SinkStart.ACCEPT_GAP: "publish what is retained and go on without the rest",
    }
    listed = ", or ".join(f"sinks={{{facts.sink_id!r}: {way.value!r}}} to {texts[way]}" for way in offered)
    raise SinkStartError(
        what,
        where=facts.identity.target,
        fix=f"restore the sink's target as it was; or choose at the start: {listed}",
    )


def _old_target(facts: SinkFacts) -> str:
    """Return where the sink wrote before, if that is another place than now."""
    history = facts.history
    if history is None or not history.target:
        return ""
    same = (history.kind, history.target) == (facts.identity.kind, facts.identity.target)
    return "" if same or not facts.identity.target else f"{history.kind} {history.target}".strip()


def _gone(first: int, facts: SinkFacts) -> str:
    return f"epochs {first} to {_last_gone(facts)}"


def _last_gone(facts: SinkFacts) -> int:
    """Return the newest epoch that the sink can no longer get."""
    if facts.absent_since:
        return facts.base
    return max(facts.oldest - 1, facts.gone_output)


def _epochs(epochs: Sequence[int]) -> str:
    ordered = sorted(epochs)
    if len(ordered) == 1:
        return f"epoch {ordered[0]}"
    return f"{len(ordered)} epochs ({ordered[0]} to {ordered[-1]})"
