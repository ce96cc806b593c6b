"""Contents of Spark's checkpoint folder, which is a projection of the record, and when it cannot be built.

Every run has its own folder, built from the record before its query starts. The folder contains nothing that the record
does not hold, and two live drivers never write into the same folder. Measured with a file source on Spark 4.3: with a
truncated source log, the query fails, or silently skips or repeats rows. No folder left by another run is trusted.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from statebed.errors import ReplayError
from statebed.format import checkpoint_pb2 as pb

SPARK_KIND = "spark"
_HEADER_LINES = 2
"""Number of lines before the offsets in an entry of Spark's offset log: the version, and the metadata of the batch."""
_NO_OFFSET = "-"
_SOURCE_LOGS = "sources/"


def check_position(position: pb.SourcePosition, *, where: str) -> None:
    """Raise ReplayError if no Spark checkpoint can be built from the position."""
    if position.kind and position.kind != SPARK_KIND:
        raise _refused(f"the state was written by a program of kind {position.kind!r}, not by Spark", where)
    if not position.HasField("batch_id"):
        return
    recorded = {int(entry.name) for entry in position.offsets}
    batch = position.batch_id
    if not {max(batch - 1, 0), batch} <= recorded:
        raise _refused(f"the record lacks the offsets of batch {batch} or of the one before it", where)


def offset_names(streams: Sequence[int], owners: Sequence[str]) -> tuple[str, ...]:
    """Return a name for each offset of a Spark query, from its stream number and the source that owns it.

    The name is the source's name, with a number if the source has several streams. If an earlier source reads the same
    stream, its name follows after `=`, because Spark has one source log for both.

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
    """Return the position with the offsets of `wanted`, in that order, because Spark knows sources only by position.

    Sources are matched by name. A new source has no offset, and starts where it would start in a query of its own. A
    removed source is left out. A source that the query reads in more places than before continues from its offset.
    """
    known = list(position.sources)
    if not position.HasField("batch_id") or known == list(wanted):
        return position
    lines = {entry.name: entry.content.decode().split("\n") for entry in position.offsets}
    counts = {len(entry) - _HEADER_LINES for entry in lines.values()}
    if counts != {len(known)}:
        raise _refused(
            f"it holds {', '.join(map(str, sorted(counts)))} offsets, but {len(known)} names; the job reads "
            f"{len(wanted)}",
            where,
        )
    _check_numbers(known, wanted, where=where)
    places = [_name(offset) for offset in known]
    result = pb.SourcePosition()
    result.CopyFrom(position)
    for entry in result.offsets:
        head, offsets = lines[entry.name][:_HEADER_LINES], lines[entry.name][_HEADER_LINES:]
        by_name = dict(zip(places, offsets, strict=True))
        entry.content = "\n".join([*head, *(by_name.get(_name(offset), _NO_OFFSET) for offset in wanted)]).encode()
    logs_before, logs_now = list(dict.fromkeys(map(_log, known))), list(dict.fromkeys(map(_log, wanted)))
    log_of = dict(zip(places, map(_log, known), strict=True))
    # A source log is copied from the first of its current readers that existed before.
    came_from = {_log(offset): log_of[_name(offset)] for offset in reversed(wanted) if _name(offset) in log_of}
    del result.source_logs[:]
    for log in position.source_logs:
        place, _, rest = log.name.removeprefix(_SOURCE_LOGS).partition("/")
        for now, before in came_from.items():
            if before == logs_before[int(place)]:
                moved = result.source_logs.add()
                moved.CopyFrom(log)
                moved.name = f"{_SOURCE_LOGS}{logs_now.index(now)}/{rest}"
    del result.sources[:]
    result.sources.extend(wanted)
    return result


def offsets_by_name(position: pb.SourcePosition) -> dict[str, str]:
    """Return the offset of each stream after the recorded batch, by the names that `offset_names` gives."""
    if not position.HasField("batch_id"):
        return {}
    newest = next(entry for entry in position.offsets if int(entry.name) == position.batch_id)
    lines = newest.content.decode().split("\n")[_HEADER_LINES:]
    pairs = zip(position.sources, lines, strict=False)
    return {_name(name): line for name, line in pairs if line != _NO_OFFSET}


def with_offsets(position: pb.SourcePosition, offsets: Mapping[str, str]) -> pb.SourcePosition:
    """Return the position with other offsets for the named streams, from which the next batch starts."""
    if not offsets:
        return position
    result = pb.SourcePosition()
    result.CopyFrom(position)
    for entry in result.offsets:
        if int(entry.name) == position.batch_id:
            lines = entry.content.decode().split("\n")
            for place, name in enumerate(position.sources, start=_HEADER_LINES):
                lines[place] = offsets.get(_name(name), lines[place])
            entry.content = "\n".join(lines).encode()
    return result


def _name(offset: str) -> str:
    """Return the source's name and the number of its stream, without the log's name."""
    return offset.partition("=")[0]


def _log(offset: str) -> str:
    """Return the name of the source log that the stream uses."""
    return offset.rpartition("=")[2]


def _check_numbers(known: Sequence[str], wanted: Sequence[str], *, where: str) -> None:
    """Raise ReplayError if the number of streams of a source has changed: the old and new ones could not be matched."""

    def streams(names: Sequence[str]) -> dict[str, int]:
        return Counter(name.partition("#")[0] for name in dict.fromkeys(map(_name, names)))

    before, now = streams(known), streams(wanted)
    for source in now:
        if source in before and before[source] != now[source]:
            raise ReplayError(
                f"the source {source!r} had {before[source]} streams, but now has {now[source]}",
                where=where,
                fix="pass each stream to a separate job.source, and give the new one its own name",
            )


def check_offsets(offsets: bytes, names: Sequence[str], *, where: str) -> None:
    """Raise ReplayError if the offsets in an entry of Spark's offset log do not match `names`.

    No later run could continue from such an entry.
    """
    lines = len(offsets.decode().split("\n")) - _HEADER_LINES
    if lines != len(names):
        raise ReplayError(
            f"Spark's query has {lines} offsets, but the job knows the sources of {len(names)}",
            where=where,
            fix="nothing was recorded; read each stream in a separate source, and report the plan of the job",
        )


def _refused(reason: str, where: str) -> ReplayError:
    return ReplayError(
        f"Spark's checkpoint cannot be built from the record: {reason}",
        where=where,
        fix="start a job with another name, or fork to an epoch that a Spark query committed",
    )


def needed_source_logs(names: list[str]) -> list[str]:
    """Return the source log files that a restart needs: the newest compacted file of each log and all later files.

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
