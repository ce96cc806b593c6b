"""Names of sinks that the user did not name: which of them is a sink that the job had before.

A derived name comes from the operator that produces the rows, never from a position in the program. Programs change
nevertheless (a second sink is added, two lines are swapped), and old jobs have names that were derived from positions
(`rows_2`). The target therefore decides where possible: a sink that writes where a known sink wrote is that sink. It is
refused if it gets the rows of another operator.
"""

import hashlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from statebed.errors import SinkStartError
from statebed.format import checkpoint_pb2 as pb
from statebed.format.names import MAX_NAME_LENGTH

_POSITIONAL = re.compile(r"rows_[0-9]+")
_DIGITS = 8


@dataclass(frozen=True)
class DerivedSink:
    """A sink without a user-defined name."""

    sink_id: str
    """Derived name."""
    operator_id: str
    """Operator whose rows it gets; empty if there are several."""
    kind: str = ""
    target: str = ""
    owner: str = ""
    """Sink of this job that the target belongs to; empty if there is none or it is unknown."""


def derived_name(operators: Sequence[str], label: str = "", *, distinguished_by: str = "") -> str:
    """Derive the name of a sink from its operators and its label, with a digest of `distinguished_by` if that is set.

    >>> derived_name(["per_minute"], "sqlite")
    'per_minute_sqlite'
    """
    name = "_".join(filter(None, [*dict.fromkeys(operators), label]))
    if distinguished_by or len(name) > MAX_NAME_LENGTH:
        digest = hashlib.sha256(f"{name}\n{distinguished_by}".encode()).hexdigest()[:_DIGITS]
        name = f"{name[: MAX_NAME_LENGTH - _DIGITS - 1]}_{digest}"
    return name


def settled_names(
    derived: Sequence[DerivedSink],
    *,
    chosen: Collection[str],
    known: Sequence[pb.SinkHistory],
    operators: Collection[str] = (),
) -> dict[str, str]:
    """Map each derived name to the sink's name in the log; `chosen` are the names chosen by the user.

    `operators` are those of the job. Raise SinkStartError if the target of a sink was written by another one of them.

    A sink is matched with a known one by its target, else by the owner stored in the target, else by its name. A name
    that was derived from a position also matches if it is the only one of its operator.
    """
    free = {history.sink_id: history for history in known if history.sink_id not in chosen}
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
                _check_operator(sink, free[name], operators)
                names[sink.sink_id] = name
                del free[name]
    taken = {*chosen, *names.values()}
    for sink in derived:
        if sink.sink_id not in names:
            name = sink.sink_id
            names[name] = derived_name([name], distinguished_by=sink.target) if name in taken else name
            taken.add(names[name])
    return names


def _check_operator(sink: DerivedSink, history: pb.SinkHistory, operators: Collection[str]) -> None:
    """Raise SinkStartError if the known sink has the rows of another operator that the job still has."""
    before, now = history.operator_id, sink.operator_id
    if not now or before == now or before not in operators:
        return
    raise SinkStartError(
        f"a sink of operator {now} writes to the target of sink {history.sink_id}, which has the rows of operator "
        f"{before}",
        where=sink.target,
        fix="exchange the targets if they were mixed up, or give the sink a new one; to continue this target with the "
        f"rows of {now}, name the sink: write(..., name={history.sink_id!r})",
    )


def _with_target(sink: DerivedSink, free: Mapping[str, pb.SinkHistory]) -> str:
    """Return the free name whose sink wrote to the same target; empty if there is none."""
    same = (name for name, history in free.items() if (history.kind, history.target) == (sink.kind, sink.target))
    return next(same, "") if sink.target else ""


def _only_one_of_operator(
    sink: DerivedSink, free: Mapping[str, pb.SinkHistory], unsettled: Sequence[DerivedSink]
) -> str:
    """Return the positional name of the sink's operator if it is the only free one and the sink has no rival, else
    empty.
    """
    rivals = [other for other in unsettled if other.operator_id == sink.operator_id]
    old = [
        name
        for name, history in free.items()
        if not history.kind and _POSITIONAL.fullmatch(name) and history.operator_id == sink.operator_id
    ]
    return old[0] if sink.operator_id and len(rivals) == len(old) == 1 else ""
