"""Spark's checkpoint folder is a projection of the record: what has to be in it, and when it cannot be built.

Every run has a folder of its own, built from the record before its query starts: nothing lives there that the record
does not hold, and two live drivers never write into one folder. Measured with a file source on Spark 4.3: a source log
that is cut fails, or skips or repeats rows without a word, so no folder that another run left is trusted.
"""

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


def rearranged(position: pb.SourcePosition, wanted: Sequence[str], *, where: str) -> pb.SourcePosition:
    """The position with the offsets of these sources, in their order: Spark knows sources by their places alone.

    A source that is new has no offset, and begins where it would begin in a query of its own; one that is gone is left
    out. Both are decided by name.
    """
    known = list(position.sources)
    if not position.HasField("batch_id") or known == list(wanted):
        return position
    lines = {entry.name: entry.content.decode().split("\n") for entry in position.offsets}
    there = {len(some) - _HEADER_LINES for some in lines.values()}
    if not known or not wanted or there != {len(known)}:
        if there == {len(wanted)}:
            return position
        raise _refused(
            f"it holds offsets of {', '.join(map(str, sorted(there)))} sources whose names are not known, and the job "
            f"has {len(wanted)}",
            where,
        )
    made = pb.SourcePosition()
    made.CopyFrom(position)
    for entry in made.offsets:
        head, offsets = lines[entry.name][:_HEADER_LINES], lines[entry.name][_HEADER_LINES:]
        by_name = dict(zip(known, offsets, strict=True))
        entry.content = "\n".join([*head, *(by_name.get(name, _NO_OFFSET) for name in wanted)]).encode()
    del made.source_logs[:]
    for log in position.source_logs:
        place, _, rest = log.name.removeprefix(_SOURCE_LOGS).partition("/")
        name = known[int(place)]
        if name in wanted:
            moved = made.source_logs.add()
            moved.CopyFrom(log)
            moved.name = f"{_SOURCE_LOGS}{list(wanted).index(name)}/{rest}"
    del made.sources[:]
    made.sources.extend(wanted)
    return made


def names_of(offsets: bytes, names: Sequence[str]) -> list[str]:
    """The names of the sources that an entry of Spark's offset log has lines for; none where that is not certain."""
    return list(names) if len(offsets.decode().split("\n")) - _HEADER_LINES == len(names) else []


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
