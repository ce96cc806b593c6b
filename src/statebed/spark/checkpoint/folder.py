"""Spark's checkpoint folder, derived from the record and never set by the user.

After Spark has planned a batch, its offsets, the previous ones, and the log files of each source are read from the
folder and become part of the epoch's source position. On a restart, each run builds a separate folder from the record,
so that a superseded driver that is still alive never shares Spark's logs with the new one. Measured on Spark 4.3: a
restart after batch b needs `metadata`, `offsets/b-1`, `offsets/b`, `commits/b`, and of each source log the newest
compacted file and everything after it; `.crc` files are not needed.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from statebed.checkpoint.objects import fetch
from statebed.errors import LostWriteError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.digest import crc32c, digest
from statebed.protocol.projection import SPARK_KIND, check_offsets, check_position, needed_source_logs, rearranged
from statebed.storage import ObjectStore, put_verified

_log = logging.getLogger(__name__)


def projection_folder(*, local_state: Path | None, state_url: str, job_id: str, run: int) -> Path:
    """Return the folder of a run's Spark checkpoint: beside a local state, else in the user's cache folder."""
    if local_state is not None:
        return local_state / names.job_folder(job_id) / names.spark_folder(run)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = hashlib.sha256(state_url.encode()).hexdigest()[:16]
    return cache / "statebed" / place / names.job_folder(job_id) / names.spark_folder(run)


class SparkProjection:
    """Checkpoint folder of one run."""

    def __init__(
        self, folder: Path, store: ObjectStore, *, sources: Sequence[str], topic_ids: Mapping[str, str] | None = None
    ) -> None:
        """Create the projection.

        `sources` are the names of the offsets of Spark's query, in order. `topic_ids` are the ids of Kafka topics that
        it reads, by topic.
        """
        self._folder = folder
        self._store = store
        self._sources = tuple(sources)
        self._topics = [
            pb.KafkaTopic(topic=topic, topic_id=topic_id) for topic, topic_id in sorted((topic_ids or {}).items())
        ]
        # Spark never changes a log file after writing it, so each is read and uploaded once per run.
        self._known_logs: dict[str, pb.SourceLogFile] = {}

    @property
    def location(self) -> str:
        """Value of Spark's option checkpointLocation; has an explicit scheme, because a cluster's default file system
        may differ.

        It is not escaped, because Hadoop uses it verbatim.
        """
        return f"file://{self._folder.absolute()}"

    def build(self, position: pb.SourcePosition) -> None:
        """Build the folder from the position of the record, before a query starts on it."""
        check_position(position, where=str(self._folder))
        position = rearranged(position, self._sources, where=str(self._folder))
        _log.info("building Spark's checkpoint %s from the record", self._folder)
        logs = {log.name: fetch(self._store, log.path, size=log.size, crc=log.crc32c) for log in position.source_logs}
        if self._folder.exists():
            shutil.rmtree(self._folder)  # left by another job of the same name and location, or incomplete
        self._folder.mkdir(parents=True)
        if position.HasField("batch_id"):
            self._write_all(position, logs)
        self._known_logs = {log.name: log for log in position.source_logs}
        self._remove_older()

    def offsets(self, batch_id: int) -> bytes:
        """Return the entry of a batch in Spark's offset log, which Spark writes before it starts the batch."""
        return (self._folder / "offsets" / str(batch_id)).read_bytes()

    def position(self, *, epoch: int, query_id: str, batch_id: int, spark_version: str) -> pb.SourcePosition:
        """Return the source position after the batch; upload the source logs that no earlier record contains."""
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
            kafka_topics=self._topics,
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
        """Remove the folders of earlier runs, except for the last one, which may still be alive until it is fenced.

        Folders of later runs stay, because this run may be the superseded one.
        """
        older = sorted(other for other in self._folder.parent.iterdir() if other.name < self._folder.name)
        for folder in older[:-1]:
            shutil.rmtree(folder, ignore_errors=True)

    def _write(self, name: str, data: bytes) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        if path.read_bytes() != data:  # Spark continues from the offsets that it finds there
            raise LostWriteError(
                f"the disk stored other bytes than the {len(data)} that were written to {name}",
                where=str(path),
                fix="check the disk, and start the job again: the folder is built from the record",
            )

    def _source_logs(self) -> list[str]:
        """Return all files below `sources`, except for hidden ones, which contain Hadoop's checksums."""
        paths = (self._folder / "sources").rglob("*")
        files = [path for path in paths if path.is_file() and not path.name.startswith(".")]
        return sorted(path.relative_to(self._folder).as_posix() for path in files)


def _commit_entry(offsets: bytes) -> bytes:
    """Return the entry that Spark will write to its commit log after the batch, as far as a restart needs it.

    It contains Spark's own watermark. Statebed's watermark is in the record, so a lower bound is sufficient here.
    """
    header = offsets.decode().split("\n")[1]
    watermark = int(json.loads(header).get("batchWatermarkMs", 0))
    return f'v1\n{{"nextBatchWatermarkMs":{watermark}}}'.encode()
