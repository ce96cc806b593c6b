"""Checks that no sink of a job writes to the place of another sink, or of the state."""

from collections.abc import Iterable

from statebed.checkpoint import Sink
from statebed.errors import InputError
from statebed.sinks.base import BaseSink
from statebed.sinks.places import real_place


def check_places(new: Sink, *, state_url: str, others: Iterable[Sink], where: str) -> None:
    """Raise InputError for a duplicate name or target, or for a table inside the state's or another table's folder."""
    others = list(others)
    if new.sink_id in [sink.sink_id for sink in others]:
        raise InputError(
            f"two sinks are called {new.sink_id!r}", where=where, fix="give each its own: write(..., name='...')"
        )
    target = _target(new)
    for other in others:
        if target and target == _target(other):
            raise InputError(
                f"the sinks {other.sink_id} and {new.sink_id} write to the same target",
                where=target,
                fix="give each its own target; a database may treat names with different spellings as the same "
                "(SQLite ignores case, PostgreSQL reads the first 63 bytes), and a path may lead to the same place as "
                "another",
            )
    folder = _folder(new)
    taken = {} if folder is None else {"the state": state_url}
    taken |= {f"the table of sink {other.sink_id}": url for other in others if (url := _folder(other)) is not None}
    for owner, url in taken.items():
        if folder is not None and _nested(folder, url):
            raise InputError(
                f"the table of sink {new.sink_id} and {owner} are nested",
                where=f"{folder} and {url}",
                fix="give the table its own folder: write('parquet', path='out')",
            )


def _target(sink: Sink) -> str:
    return sink.target if isinstance(sink, BaseSink) and not sink.shares_target else ""


def _folder(sink: Sink) -> str | None:
    return sink.folder if isinstance(sink, BaseSink) else None


def _nested(path: str, other: str) -> bool:
    first, second = _comparable(path), _comparable(other)
    return first.startswith(second) or second.startswith(first)


def _comparable(url: str) -> str:
    return f"{real_place(url)}/"
