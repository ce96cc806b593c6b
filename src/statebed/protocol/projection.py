"""Spark's checkpoint folder is a projection of the record: what has to be in it, and when it cannot be built.

Every run has a folder of its own, built from the record before its query starts: nothing lives there that the record
does not hold, and two live drivers never write into one folder. Measured with a file source on Spark 4.3: a source log
that is cut fails, or skips or repeats rows without a word, so no folder that another run left is trusted.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from statebed.errors import ReplayError
from statebed.format import checkpoint_pb2 as pb

SPARK_KIND = "spark"
_HEADER_LINES = 2
"""Of an entry in Spark's offset log: its version, and what the batch was planned with."""
_NO_OFFSET = "-"
_SOURCE_LOGS = "sources/"


def check_position(position: pb.SourcePosition, *, where: str) -> None:
    """Refuse a position that no checkpoint of Spark's can be built from."""
    if position.kind and position.kind != SPARK_KIND:
        raise _refused(f"the state was written by a program of kind {position.kind!r}, not by Spark", where)
    if not position.HasField("batch_id"):
        return
    recorded = {int(entry.name) for entry in position.offsets}
    batch = position.batch_id
    if not {max(batch - 1, 0), batch} <= recorded:
        raise _refused(f"the record lacks the offsets of batch {batch} or of the one before it", where)


def offset_names(streams: Sequence[int], owners: Sequence[str]) -> tuple[str, ...]:
    """A name for each offset of a query of Spark's, from the number of its stream and the source that it is of.

    It is the source's name, numbered where the source has several streams. Where another source reads the same stream,
    and does so first, that one's name stands behind: Spark has one log for both.

    >>> offset_names([0, 0, 1], ["rides", "rides", "fares"])
    ('rides', 'rides', 'fares')
    >>> offset_names([0, 1, 0], ["rides", "rides", "again"])
    ('rides#0', 'rides#1', 'again=rides#0')
    """
    own: dict[str, list[int]] = {}
    for stream, owner in zip(streams, owners, strict=True):
        if stream not in own.setdefault(owner, []):
            own[owner].append(stream)
    first: dict[int, str] = {}
    names = []
    for stream, owner in zip(streams, owners, strict=True):
        name = owner if len(own[owner]) == 1 else f"{owner}#{own[owner].index(stream)}"
        log = first.setdefault(stream, name)
        names.append(name if log == name else f"{name}={log}")
    return tuple(names)


def rearranged(position: pb.SourcePosition, wanted: Sequence[str], *, where: str) -> pb.SourcePosition:
    """The position with the offsets of these names, in their order: Spark knows sources by their places alone.

    A source that is new has no offset, and begins where it would begin in a query of its own; one that is gone is left
    out. Both are decided by name. One that is read once more goes on from where it is.
    """
    known = list(position.sources)
    if not position.HasField("batch_id") or known == list(wanted):
        return position
    lines = {entry.name: entry.content.decode().split("\n") for entry in position.offsets}
    there = {len(some) - _HEADER_LINES for some in lines.values()}
    if there != {len(known)}:
        raise _refused(
            f"it holds {', '.join(map(str, sorted(there)))} offsets, and the names of {len(known)}; the job reads "
            f"{len(wanted)}",
            where,
        )
    _check_numbers(known, wanted, where=where)
    places = [_name(one) for one in known]
    made = pb.SourcePosition()
    made.CopyFrom(position)
    for entry in made.offsets:
        head, offsets = lines[entry.name][:_HEADER_LINES], lines[entry.name][_HEADER_LINES:]
        by_name = dict(zip(places, offsets, strict=True))
        entry.content = "\n".join([*head, *(by_name.get(_name(one), _NO_OFFSET) for one in wanted)]).encode()
    logs_before, logs_now = list(dict.fromkeys(map(_log, known))), list(dict.fromkeys(map(_log, wanted)))
    log_of = dict(zip(places, map(_log, known), strict=True))
    # The logs of a stream come from any of those that read it now.
    came_from = {_log(one): log_of[_name(one)] for one in reversed(wanted) if _name(one) in log_of}
    del made.source_logs[:]
    for log in position.source_logs:
        place, _, rest = log.name.removeprefix(_SOURCE_LOGS).partition("/")
        for now, before in came_from.items():
            if before == logs_before[int(place)]:
                moved = made.source_logs.add()
                moved.CopyFrom(log)
                moved.name = f"{_SOURCE_LOGS}{logs_now.index(now)}/{rest}"
    del made.sources[:]
    made.sources.extend(wanted)
    return made


def _name(one: str) -> str:
    """Of the source, and the number of its stream."""
    return one.partition("=")[0]


def _log(one: str) -> str:
    """The name by which the log of a stream is known."""
    return one.rpartition("=")[2]


def _check_numbers(known: Sequence[str], wanted: Sequence[str], *, where: str) -> None:
    """Refuse a source that has more or fewer streams than it had: which of them is which, nobody can say."""

    def streams(names: Sequence[str]) -> dict[str, int]:
        return Counter(_name(one).partition("#")[0] for one in dict.fromkeys(map(_name, names)))

    before, now = streams(known), streams(wanted)
    for source in now:
        if source in before and before[source] != now[source]:
            raise ReplayError(
                f"the source {source!r} had {before[source]} streams, and has {now[source]}",
                where=where,
                fix="give each stream to job.source by itself, the new one with a name of its own",
            )


def check_offsets(offsets: bytes, names: Sequence[str], *, where: str) -> None:
    """Refuse to record an entry of Spark's offset log whose lines are not known by name: nobody could go on from it."""
    lines = len(offsets.decode().split("\n")) - _HEADER_LINES
    if lines != len(names):
        raise ReplayError(
            f"Spark's query has {lines} offsets, and the job knows the sources of {len(names)}",
            where=where,
            fix="nothing was recorded; read each stream in a source of its own, and report the plan of the job",
        )


def _refused(reason: str, where: str) -> ReplayError:
    return ReplayError(
        f"Spark's checkpoint cannot be built from the record: {reason}",
        where=where,
        fix="start another job name, or fork to an epoch that a Spark query committed",
    )


def needed_source_logs(names: list[str]) -> list[str]:
    """The files of source logs that a restart needs: of each log the newest compacted file and what follows it.

    >>> needed_source_logs(["sources/0/8", "sources/0/9.compact", "sources/0/10", "sources/1/0"])
    ['sources/0/9.compact', 'sources/0/10', 'sources/1/0']
    """
    newest_compact: dict[str, int] = {}
    for name in names:
        folder, number, compact = _parts(name)
        if compact and number is not None:
            newest_compact[folder] = max(number, newest_compact.get(folder, -1))
    return [name for name in names if _is_needed(name, newest_compact)]


def _is_needed(name: str, newest_compact: Mapping[str, int]) -> bool:
    folder, number, compact = _parts(name)
    if number is None or folder not in newest_compact:
        return True
    return number > newest_compact[folder] or (compact and number == newest_compact[folder])


def _parts(name: str) -> tuple[str, int | None, bool]:
    folder, _, file = name.rpartition("/")
    stem = file.removesuffix(".compact")
    return folder, int(stem) if stem.isdigit() else None, stem != file
