"""Status objects that the process of a run writes: its heartbeat, and how the run ended.

Each run has two small objects beside the log: `runs/{run}/heartbeat.metadata`, replaced while the process lives, and
`runs/{run}/end.metadata`, written once when the run ends. They are for people: no decision of the protocol reads them,
and a run whose process cannot write them is as safe as any other.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from statebed.errors import ObjectMissingError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.sealed import open_sealed, seal
from statebed.storage import ObjectStore

MAX_TEXT = 4_000
"""Maximum length of a stored error text, in characters."""
MAX_TRACEBACK = 16_000


@dataclass(frozen=True)
class RunStatus:
    """Status objects of a run, each None if it does not exist."""

    run: int
    end: pb.RunEnd | None = None
    heartbeat: pb.RunHeartbeat | None = None


def put_end(store: ObjectStore, end: pb.RunEnd) -> None:
    """Record how a run ended; the first caller wins."""
    store.put_if_absent(names.run_end(end.run), seal(end))


def put_heartbeat(store: ObjectStore, heartbeat: pb.RunHeartbeat) -> None:
    store.put(names.run_heartbeat(heartbeat.run), seal(heartbeat))


def read_status(store: ObjectStore, run: int) -> RunStatus:
    """Read both objects of a run; raise a FormatError if one is damaged."""
    return RunStatus(run, read_end(store, run), read_heartbeat(store, run))


def read_end(store: ObjectStore, run: int) -> pb.RunEnd | None:
    path = names.run_end(run)
    try:
        return open_sealed(pb.RunEnd, store.get(path), where=f"{store.url}/{path}")
    except ObjectMissingError:
        return None


def read_heartbeat(store: ObjectStore, run: int) -> pb.RunHeartbeat | None:
    path = names.run_heartbeat(run)
    try:
        return open_sealed(pb.RunHeartbeat, store.get(path), where=f"{store.url}/{path}")
    except ObjectMissingError:
        return None


def known_runs(store: ObjectStore) -> list[int]:
    """Return the numbers of the runs that have a status object, ascending."""
    folders = store.list_level(names.RUNS).folders
    return sorted(run for folder in folders if (run := names.run_of(folder)) is not None)


def undelivered_sinks(pending: Iterable[tuple[int, Iterable[str]]]) -> list[pb.UndeliveredSink]:
    """Return, for each sink with pending epochs, the first of them and their number; `pending` maps epochs to sinks.

    >>> [(sink.sink_id, sink.first_epoch, sink.epochs) for sink in undelivered_sinks([(4, ["a"]), (5, ["a", "b"])])]
    [('a', 4, 2), ('b', 5, 1)]
    """
    epochs: dict[str, list[int]] = {}
    for epoch, sinks in pending:
        for sink in sinks:
            epochs.setdefault(sink, []).append(epoch)
    return [
        pb.UndeliveredSink(sink_id=sink, first_epoch=min(waiting), epochs=len(waiting))
        for sink, waiting in sorted(epochs.items())
    ]


def shortened(text: str, max_characters: int) -> str:
    """Keep the head and the tail of a text that is longer than `max_characters` characters.

    >>> shortened("abcdefgh", 4)
    'ab ... gh'
    """
    return (
        text if len(text) <= max_characters else f"{text[: max_characters // 2]} ... {text[-(max_characters // 2) :]}"
    )
