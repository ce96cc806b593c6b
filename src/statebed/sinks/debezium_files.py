"""Sink that writes changes to files of Debezium JSON, one message per line, exactly once: a file table with a manifest.

    {path}/epoch=000000000007/changes.{digest}.jsonl
    {path}/_statebed/                                   the manifest: which files there are

Read the lines of `table_files(path)` in this order, or follow the epoch folders.
"""

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from statebed.checkpoint import Publication
from statebed.format.digest import digest
from statebed.sinks.base import outbox_rows
from statebed.sinks.debezium import MESSAGES, Envelope
from statebed.sinks.file_table import FileContent, FileTableSink


class DebeziumFilesSink(FileTableSink):
    """Publishes changes as JSON lines. With `snapshot`, the rows of the first epoch are a snapshot (`op` is `r`)."""

    kind: str = "debezium"

    def __init__(self, *, sink_id: str, path: str, envelope: Envelope, snapshot: bool = False) -> None:
        super().__init__(
            sink_id=sink_id, path=path, job_id=envelope.job_id, schema=pa.schema([MESSAGES.field("value")])
        )
        self._envelope = envelope
        self._snapshot = snapshot

    def rename(self, sink_id: str) -> None:
        super().rename(sink_id)
        self._envelope = replace(self._envelope, table=sink_id)

    @property
    def described(self) -> str:
        return f"Debezium JSON lines {self.url}, by {', '.join(self._envelope.key)}"

    def contents(self, publication: Publication, *, first: bool) -> Iterator[FileContent]:
        rows = outbox_rows(publication)
        if rows is None:
            return
        messages = self._envelope.messages(rows, publication, snapshot=self._snapshot and first)
        lines = [value for _, value in messages]
        if lines:
            data = b"\n".join([*lines, b""])
            yield FileContent(f"changes.{digest(data)}.jsonl", data, len(lines))
