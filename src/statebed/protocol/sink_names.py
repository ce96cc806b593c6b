"""Names of sinks that were given none: which of them is a sink that the job had before.

A derived name comes from the operator that the rows come from, never from a position in the program. Programs change
all the same (a second sink is added, two lines change places), and old jobs have names that were derived from positions
(`rows_2`). So the target decides where it can: a sink that writes where a known one wrote is that sink.
"""

import hashlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from statebed.format import checkpoint_pb2 as pb
from statebed.format.names import MAX_NAME_LENGTH

_POSITIONAL = re.compile(r"rows_[0-9]+")
_DIGITS = 8


@dataclass(frozen=True)
class DerivedSink:
    """A sink without a given name."""

    sink_id: str
    """Its derived name."""
    operator_id: str
    """The operator whose rows it gets; empty: several."""
    kind: str = ""
    target: str = ""
    owner: str = ""
    """The sink of this job that its target belongs to; empty: none, or it cannot say."""


def derived_name(operators: Sequence[str], label: str = "", *, told_apart_by: str = "") -> str:
    """Name a sink by the operators it listens to, what it is, and if need be a digest of what tells it apart.

    >>> derived_name(["per_minute"], "sqlite")
    'per_minute_sqlite'
    """
    name = "_".join(filter(None, [*dict.fromkeys(operators), label]))
    if told_apart_by or len(name) > MAX_NAME_LENGTH:
        digest = hashlib.sha256(f"{name}\n{told_apart_by}".encode()).hexdigest()[:_DIGITS]
        name = f"{name[: MAX_NAME_LENGTH - _DIGITS - 1]}_{digest}"
    return name


def settled_names(
    derived: Sequence[DerivedSink], *, given: Collection[str], known: Sequence[pb.SinkHistory]
) -> dict[str, str]:
    """Map each derived name to the one that the sink has in the log; `given` are the names that users chose.

    A sink is a known one by its target, else by what the target itself says, else by its name, else, for names
    that were derived from positions, if it is the only one behind its operator.
    """
    free = {history.sink_id: history for history in known if history.sink_id not in given}
    names: dict[str, str] = {}
    searches: tuple[Callable[[DerivedSink], str], ...] = (
        lambda sink: _with_target(sink, free),
        lambda sink: sink.owner,
        lambda sink: sink.sink_id,
        lambda sink: _only_one_of_operator(sink, free, [other for other in derived if other.sink_id not in names]),
    )
    for search in searches:
        for sink in derived:
            name = "" if sink.sink_id in names else search(sink)
            if name in free:
                names[sink.sink_id] = name
                del free[name]
    taken = {*given, *names.values()}
    for sink in derived:
        if sink.sink_id not in names:
            name = sink.sink_id
            names[name] = derived_name([name], told_apart_by=sink.target) if name in taken else name
            taken.add(names[name])
    return names


def _with_target(sink: DerivedSink, free: Mapping[str, pb.SinkHistory]) -> str:
    """Return the free name whose sink wrote to the same target; empty if there is none."""
    same = (name for name, history in free.items() if (history.kind, history.target) == (sink.kind, sink.target))
    return next(same, "") if sink.target else ""


def _only_one_of_operator(
    sink: DerivedSink, free: Mapping[str, pb.SinkHistory], unsettled: Sequence[DerivedSink]
) -> str:
    """Return the free positional name behind the sink's operator if both are the only ones there; else empty."""
    rivals = [other for other in unsettled if other.operator_id == sink.operator_id]
    old = [
        name
        for name, history in free.items()
        if not history.kind and _POSITIONAL.fullmatch(name) and history.operator_id == sink.operator_id
    ]
    return old[0] if sink.operator_id and len(rivals) == len(old) == 1 else ""
