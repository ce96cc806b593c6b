"""Spark's checkpoint folder is a projection of the record: keep it, or build it again.

Building again is always right, because nothing lives in that folder that the record does not hold; keeping it spares
the work, and lets Spark offer an uncommitted batch with the same rows once more. It is kept only if it agrees with the
record file by file. Measured with a file source on Spark 4.3: a source log that is cut fails, or skips or repeats rows
without a word, so a folder that disagrees anywhere is not repaired in place.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from statebed.format import checkpoint_pb2 as pb

SPARK_KIND = "spark"


class ProjectionAction(enum.Enum):
    """What to do with Spark's checkpoint folder before a query starts on it."""

    KEEP = "keep"
    REBUILD = "rebuild"
    REFUSE = "refuse"


@dataclass(frozen=True)
class ProjectionDecision:
    """The action, and for people why."""

    action: ProjectionAction
    reason: str


@dataclass(frozen=True)
class SourceLogFact:
    """Size and checksum of one file of a source's log."""

    size: int
    crc32c: int


@dataclass(frozen=True)
class FolderFacts:
    """What was seen in the folder; an absent folder is an empty one."""

    query_id: str | None = None
    offsets: Mapping[int, bytes] = field(default_factory=dict)
    """Every entry of the offset log, by batch id."""
    commits: frozenset[int] = frozenset()
    """The batch ids in the commit log."""
    source_logs: Mapping[str, SourceLogFact] = field(default_factory=dict)
    """By name, relative to the folder."""

    orphans: frozenset[str] = frozenset()
    """Hadoop's checksum files whose own file is gone; they make Spark refuse to write that file again."""

    torn: frozenset[str] = frozenset()
    """Log files without content, as a machine leaves them that died before it wrote them out."""

    @property
    def empty(self) -> bool:
        return self.query_id is None and not (self.offsets or self.commits or self.source_logs or self.orphans)


def decide_projection(position: pb.SourcePosition, folder: FolderFacts) -> ProjectionDecision:
    """Compare the folder with the position that the record carries."""
    if position.kind and position.kind != SPARK_KIND:
        return _refuse(f"the state was written by a program of kind {position.kind!r}, not by Spark")
    if not position.HasField("batch_id"):
        return _keep("nothing yet") if folder.empty else _rebuild("it holds batches, the state holds none")
    recorded = {int(entry.name): entry.content for entry in position.offsets}
    batch = position.batch_id
    if batch not in recorded or (batch > 0 and batch - 1 not in recorded):
        return _refuse(f"the record lacks the offsets of batch {batch} or of the one before it")
    disagreement = (
        _ownership(position, folder)
        or _being_ahead(batch, folder)
        or _other_offsets(recorded, folder)
        or _other_source_logs(position, folder)
    )
    return _rebuild(disagreement) if disagreement else _keep("it agrees with the record")


# Each of these says why the folder does not serve, or "".


def _ownership(position: pb.SourcePosition, folder: FolderFacts) -> str:
    if folder.empty:
        return "it is missing"
    if folder.query_id != position.query_id:
        return f"it belongs to query {folder.query_id}, the state to query {position.query_id}"
    if folder.orphans:
        return f"files were removed from it: {', '.join(sorted(folder.orphans))} are left"
    if folder.torn:
        return f"files in it have no content: {', '.join(sorted(folder.torn))}"
    return ""


def _being_ahead(batch: int, folder: FolderFacts) -> str:
    newest_commit, newest_plan = max(folder.commits, default=-1), max(folder.offsets, default=-1)
    if newest_commit > batch:
        return f"it is ahead: batch {newest_commit} is committed there, the state holds batch {batch}"
    if newest_plan > batch + 1:
        return f"it is ahead: batch {newest_plan} is planned there, the state holds batch {batch}"
    if newest_plan > batch and newest_commit < batch:
        return f"it plans batch {newest_plan} without having committed batch {batch}"
    return ""


def _other_offsets(recorded: Mapping[int, bytes], folder: FolderFacts) -> str:
    for number, content in recorded.items():
        if number not in folder.offsets:
            return f"it is stale or cut: it lacks the offsets of batch {number}"
        if folder.offsets[number] != content:
            return f"it is forked: batch {number} has other offsets there"
    return ""


def _other_source_logs(position: pb.SourcePosition, folder: FolderFacts) -> str:
    for log in position.source_logs:
        if folder.source_logs.get(log.name) != SourceLogFact(size=log.size, crc32c=log.crc32c):
            return f"the source log {log.name} is missing or differs there"
    return ""


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


def _keep(reason: str) -> ProjectionDecision:
    return ProjectionDecision(ProjectionAction.KEEP, reason)


def _rebuild(reason: str) -> ProjectionDecision:
    return ProjectionDecision(ProjectionAction.REBUILD, reason)


def _refuse(reason: str) -> ProjectionDecision:
    return ProjectionDecision(ProjectionAction.REFUSE, reason)
