"""Checks that no sink of a job writes to the place of another sink, or of the state."""

from collections.abc import Iterable

from statebed.checkpoint import Sink
from statebed.errors import InputError
from statebed.sinks.base import BaseSink
from statebed.sinks.places import Place


def check_places(new: Sink, *, state_url: str, others: Iterable[Sink], where: str) -> None:
    """Raise InputError for a duplicate name or target, or for a place that overlaps the state's or another sink's."""
    others = list(others)
    if new.sink_id in [sink.sink_id for sink in others]:
        fix = "give each its own: write(..., name='...')"
        if isinstance(new, BaseSink) and new.unnamed_rows:
            raise InputError(f"two sinks of {new.unnamed_rows} have no name", where=where, fix=fix)
        raise InputError(f"two sinks are called {new.sink_id!r}", where=where, fix=fix)
    target = _target(new)
    for other in others:
        if target and target == _target(other):
            raise InputError(
                f"{_label(other)} and {_label(new)} write to the same target",
                where=target,
                fix="give each its own target; a database may treat names with different spellings as the same "
                "(SQLite ignores case, PostgreSQL reads the first 63 bytes), and a path may lead to the same place as "
                "another",
            )
    place = _place(new)
    if place is None:
        return
    taken = {"the state": Place(state_url)}
    taken |= {_described(other, at): at for other in others if (at := _place(other)) is not None}
    for owner, at in taken.items():
        if place.excludes(at):
            raise InputError(
                f"{_described(new, place)} and {owner} overlap",
                where=f"{place.url} and {at.url}",
                fix="give each its own path, outside the other: write(..., path='out')",
            )


def _target(sink: Sink) -> str:
    return sink.target if isinstance(sink, BaseSink) and not sink.shares_target else ""


def _place(sink: Sink) -> Place | None:
    return sink.place if isinstance(sink, BaseSink) else None


def _described(sink: Sink, place: Place) -> str:
    return f"the {place.holding.value} of {_label(sink)}"


def _label(sink: Sink) -> str:
    return sink.label if isinstance(sink, BaseSink) else f"sink {sink.sink_id}"
