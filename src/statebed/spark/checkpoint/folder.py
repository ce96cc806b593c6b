"""Spark's checkpoint folder, derived from the record and never given by the user.

Going out, the folder is read after Spark planned a batch: its offsets, the ones before, and the log files of each
source become part of the epoch's source position. Coming back, each run builds a folder of its own from the record, so
a superseded driver that still lives never meets the new one in Spark's logs. Measured on Spark 4.3: a restart after
batch b needs `metadata`, `offsets/b-1`, `offsets/b`, `commits/b` and of each source log the newest compacted file and
all that follows; `.crc` files are not needed.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from statebed.checkpoint.objects import fetch
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.digest import crc32c, digest
from statebed.protocol.projection import SPARK_KIND, check_offsets, check_position, needed_source_logs, rearranged
from statebed.storage import ObjectStore, put_verified

_log = logging.getLogger(__name__)


def projection_folder(*, local_state: Path | None, state_url: str, job_id: str, run: int) -> Path:
    """Where Spark's checkpoint of a run lies: beside a local state, else in this user's cache folder."""
    if local_state is not None:
        return local_state / names.job_folder(job_id) / names.spark_folder(run)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = hashlib.sha256(state_url.encode()).hexdigest()[:16]
    return cache / "statebed" / place / names.job_folder(job_id) / names.spark_folder(run)


class SparkProjection:
    """The checkpoint folder of one run."""

    def __init__(self, folder: Path, store: ObjectStore, *, sources: Sequence[str]) -> None:
        """`sources` are the names of the offsets of Spark's query, in their order."""
        self._folder = folder
        self._store = store
        self._sources = tuple(sources)
        # Spark never changes a log file once it is written: each is read and uploaded once per run.
        self._known_logs: dict[str, pb.SourceLogFile] = {}

    @property
    def location(self) -> str:
        """For Spark's option checkpointLocation; explicit, because a cluster's default file system may be another.

        Not escaped: Hadoop takes what stands there as it is.
        """
        return f"file://{self._folder.absolute()}"

    def build(self, position: pb.SourcePosition) -> None:
        """Make the folder from the position of the record, before a query starts on it."""
        check_position(position, where=str(self._folder))
        position = rearranged(position, self._sources, where=str(self._folder))
        _log.info("Spark's checkpoint %s is built from the record", self._folder)
        logs = {log.name: fetch(self._store, log.path, size=log.size, crc=log.crc32c) for log in position.source_logs}
        if self._folder.exists():
            shutil.rmtree(self._folder)  # of another job that had this name and place, or cut short in the building
        self._folder.mkdir(parents=True)
        if position.HasField("batch_id"):
            self._write_all(position, logs)
        self._known_logs = {log.name: log for log in position.source_logs}
        self._remove_older()

    def offsets(self, batch_id: int) -> bytes:
        """The entry of a batch in Spark's offset log, which Spark writes before it hands the batch over."""
        return (self._folder / "offsets" / str(batch_id)).read_bytes()

    def position(self, *, epoch: int, query_id: str, batch_id: int, spark_version: str) -> pb.SourcePosition:
        """The source position after the batch; uploads the source logs that no earlier record holds."""
        check_offsets(self.offsets(batch_id), self._sources, where=str(self._folder))
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
            sources=self._sources,
        )

    def _uploaded(self, name: str, epoch: int) -> pb.SourceLogFile:
        if name in self._known_logs:
            return self._known_logs[name]
        data = (self._folder / name).read_bytes()
        path = names.source_log(epoch, digest(data))
        put_verified(self._store, path, data)
        return pb.SourceLogFile(name=name, path=path, size=len(data), crc32c=crc32c(data))

    def _write_all(self, position: pb.SourcePosition, logs: dict[str, bytes]) -> None:
        for name, data in logs.items():
            self._write(name, data)
        for entry in position.offsets:
            self._write(f"offsets/{entry.name}", entry.content)
        for entry in position.commits:
            self._write(f"commits/{entry.name}", entry.content)
        self._write("metadata", json.dumps({"id": position.query_id}, separators=(",", ":")).encode())

    def _remove_older(self) -> None:
        """Of earlier runs, the last one may still live, until it finds that it is fenced; the others are over.

        Never a later run's: this run may be the one that is superseded.
        """
        older = sorted(other for other in self._folder.parent.iterdir() if other.name < self._folder.name)
        for folder in older[:-1]:
            shutil.rmtree(folder, ignore_errors=True)

    def _write(self, name: str, data: bytes) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def _source_logs(self) -> list[str]:
        """Every file below `sources` but the hidden ones, which hold Hadoop's checksums."""
        found = (self._folder / "sources").rglob("*")
        files = [path for path in found if path.is_file() and not path.name.startswith(".")]
        return sorted(path.relative_to(self._folder).as_posix() for path in files)


def _commit_entry(offsets: bytes) -> bytes:
    """What Spark will write to its commit log after the batch, as far as a restart needs it.

    Spark's own watermark goes there; ours is in the record, so a lower bound of it serves.
    """
    header = offsets.decode().split("\n")[1]
    watermark = int(json.loads(header).get("batchWatermarkMs", 0))
    return f'v1\n{{"nextBatchWatermarkMs":{watermark}}}'.encode()
