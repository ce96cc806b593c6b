"""Spark's checkpoint folder, derived from the record and never given by the user.

Going out, the folder is read after Spark planned a batch: its offsets, the ones before, and the log files of each
source become part of the epoch's source position. Coming back, the folder is compared with the record and built again
where it does not agree. Measured on Spark 4.3: a restart after batch b needs `metadata`, `offsets/b-1`, `offsets/b`,
`commits/b` and of each source log the newest compacted file and all that follows; `.crc` files are not needed, and
stale ones would be harmful, so a folder is built from nothing.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from statebed.errors import CorruptObjectError, ReplayError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.digest import crc32c, digest
from statebed.protocol.projection import (
    SPARK_KIND,
    FolderFacts,
    ProjectionAction,
    ProjectionDecision,
    SourceLogFact,
    decide_projection,
    needed_source_logs,
)
from statebed.storage import ObjectStore

_log = logging.getLogger(__name__)


def projection_folder(*, local_state: Path | None, state_url: str, job_id: str, lineage: str) -> Path:
    """Where Spark's checkpoint of a lineage lies: beside a local state, else in this user's cache folder."""
    if local_state is not None:
        return local_state / names.job_folder(job_id) / names.spark_folder(lineage)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = hashlib.sha256(state_url.encode()).hexdigest()[:16]
    return cache / "statebed" / place / names.job_folder(job_id) / names.spark_folder(lineage)


class SparkProjection:
    """The checkpoint folder of one lineage."""

    def __init__(self, folder: Path, store: ObjectStore) -> None:
        self._folder = folder
        self._store = store
        # Spark never changes a log file once it is written: each is read and uploaded once per run.
        self._known_logs: dict[str, pb.SourceLogFile] = {}

    @property
    def location(self) -> str:
        """For Spark's option checkpointLocation; explicit, because a cluster's default file system may be another."""
        return self._folder.absolute().as_uri()

    def align(self, position: pb.SourcePosition) -> ProjectionDecision:
        """Make the folder agree with the position of the record, before a query starts on it."""
        decision = decide_projection(position, self.facts())
        _log.info("Spark's checkpoint %s: %s (%s)", self._folder, decision.action.value, decision.reason)
        if decision.action is ProjectionAction.REFUSE:
            raise ReplayError(
                f"Spark's checkpoint cannot be built from the record: {decision.reason}",
                where=str(self._folder),
                fix="start another job name, or fork to an epoch that a Spark query committed",
            )
        if decision.action is ProjectionAction.REBUILD:
            self._rebuild(position)
        self._remove_other_lineages()
        self._known_logs = {log.name: log for log in position.source_logs}
        return decision

    def facts(self) -> FolderFacts:
        """What the folder holds now."""
        return FolderFacts(
            query_id=self._query_id(),
            offsets={number: path.read_bytes() for number, path in self._log_entries("offsets").items()},
            commits=frozenset(self._log_entries("commits")),
            source_logs={name: _fact(self._folder / name) for name in self._source_logs()},
            orphans=frozenset(
                path.relative_to(self._folder).as_posix()
                for path in self._folder.rglob(".*.crc")
                if not path.with_name(path.name[1:].removesuffix(".crc")).exists()
            ),
            torn=frozenset(
                path.relative_to(self._folder).as_posix()
                for path in self._folder.rglob("*")
                if path.is_file() and not path.name.startswith(".") and not path.read_bytes().strip(b"\0")
            ),
        )

    def offsets(self, batch_id: int) -> bytes:
        """The entry of a batch in Spark's offset log, which Spark writes before it hands the batch over."""
        return (self._folder / "offsets" / str(batch_id)).read_bytes()

    def position(self, *, epoch: int, query_id: str, batch_id: int, spark_version: str) -> pb.SourcePosition:
        """The source position after the batch; uploads the source logs that no earlier record holds."""
        batches = [number for number in (batch_id - 1, batch_id) if number >= 0]
        kept = needed_source_logs(self._source_logs())
        self._known_logs = {name: self._uploaded(name, epoch) for name in kept}
        return pb.SourcePosition(
            kind=SPARK_KIND,
            query_id=query_id,
            batch_id=batch_id,
            offsets=[pb.LogEntry(name=str(number), content=self.offsets(number)) for number in batches],
            commits=[pb.LogEntry(name=str(batch_id), content=_commit_entry(self.offsets(batch_id)))],
            source_logs=list(self._known_logs.values()),
            spark_version=spark_version,
        )

    def _uploaded(self, name: str, epoch: int) -> pb.SourceLogFile:
        if name in self._known_logs:
            return self._known_logs[name]
        data = (self._folder / name).read_bytes()
        path = names.source_log(epoch, digest(data))
        self._store.put(path, data)
        return pb.SourceLogFile(name=name, path=path, size=len(data), crc32c=crc32c(data))

    def _rebuild(self, position: pb.SourcePosition) -> None:
        logs = {log.name: self._checked(log) for log in position.source_logs}
        if self._folder.exists():
            shutil.rmtree(self._folder)
        if not position.HasField("batch_id"):
            return
        for name, data in logs.items():
            self._write(name, data)
        for entry in position.offsets:
            self._write(f"offsets/{entry.name}", entry.content)
        for entry in position.commits:
            self._write(f"commits/{entry.name}", entry.content)
        # Last, so that a folder that was cut short in the building belongs to nobody.
        self._write("metadata", json.dumps({"id": position.query_id}, separators=(",", ":")).encode())

    def _remove_other_lineages(self) -> None:
        """No run goes on with a lineage that a fork left: going back there is a fork again."""
        others = self._folder.parent.iterdir() if self._folder.parent.is_dir() else ()
        for folder in [other for other in others if other.name != self._folder.name]:
            shutil.rmtree(folder, ignore_errors=True)

    def _checked(self, log: pb.SourceLogFile) -> bytes:
        data = self._store.get(log.path)
        if len(data) != log.size or crc32c(data) != log.crc32c:
            raise CorruptObjectError(
                f"the copy of the source log {log.name} is not what the record says",
                where=f"{self._store.url}/{log.path}",
                fix="restore the object from a backup, or fork to an older intact epoch",
            )
        return data

    def _write(self, name: str, data: bytes) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def _query_id(self) -> str | None:
        try:
            return str(json.loads((self._folder / "metadata").read_bytes())["id"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _log_entries(self, log: str) -> dict[int, Path]:
        folder = self._folder / log
        found = folder.iterdir() if folder.is_dir() else ()
        return {int(path.name): path for path in sorted(found) if path.name.isdigit()}

    def _source_logs(self) -> list[str]:
        folder = self._folder / "sources"
        return _files_below(folder, lambda path: path.relative_to(self._folder).as_posix())


def _files_below(folder: Path, name_of: Callable[[Path], str]) -> list[str]:
    """Every file but the hidden ones, which hold Hadoop's checksums."""
    return sorted(name_of(path) for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))


def _fact(path: Path) -> SourceLogFact:
    data = path.read_bytes()
    return SourceLogFact(size=len(data), crc32c=crc32c(data))


def _commit_entry(offsets: bytes) -> bytes:
    """What Spark will write to its commit log after the batch, as far as a restart needs it.

    Spark's own watermark goes there; ours is in the record, so a lower bound of it serves.
    """
    header = offsets.decode().split("\n")[1]
    watermark = int(json.loads(header).get("batchWatermarkMs", 0))
    return f'v1\n{{"nextBatchWatermarkMs":{watermark}}}'.encode()
