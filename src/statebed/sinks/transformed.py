"""Sink that passes the rows of each committed epoch through a user's function, then to another sink.

The function takes and returns whole tables. Its result replaces the outbox file, so the other sink keeps its guarantee:
it compares the epoch, regardless of the function.
"""

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa

from statebed.checkpoint import Publication
from statebed.errors import InputError, SinkError, error_text, raised_at
from statebed.format import checkpoint_pb2 as pb
from statebed.format.digest import crc32c, digest
from statebed.protocol import Guarantee, SinkIdentity, SinkPosition
from statebed.sinks.base import BaseSink, outbox_rows
from statebed.storage import MemoryStore
from statebed.subtasks.outbox import encode_outbox


class TransformedSink(BaseSink):
    """Publishes the result of `transform` for an epoch's rows to another sink; the result must have the schema
    `schema`.
    """

    def __init__(self, sink: BaseSink, transform: Callable[[pa.Table], pa.Table], *, schema: pa.Schema) -> None:
        super().__init__(sink.sink_id)
        self._sink = sink
        self.place = sink.place
        self._transform = transform
        self._schema = schema

    @property
    def inner(self) -> BaseSink:
        """Sink behind the function."""
        return self._sink

    def to(self, sink: BaseSink) -> "TransformedSink":
        """Return the same function before another sink."""
        return TransformedSink(sink, self._transform, schema=self._schema)

    @property
    def guarantee(self) -> Guarantee:  # type: ignore[override]  # that of the sink behind it
        return self._sink.guarantee

    @property
    def described(self) -> str:
        return f"a function's rows to {self._sink.described}"

    @property
    def target(self) -> str:
        return self._sink.target

    @property
    def identity(self) -> SinkIdentity:
        return self._sink.identity

    def rename(self, sink_id: str) -> None:
        super().rename(sink_id)
        self._sink.rename(sink_id)

    def owner_of_target(self) -> str:
        return self._sink.owner_of_target()

    def check(self, *, last_number: int) -> None:
        self._sink.check(last_number=last_number)

    def probe(self) -> None:
        self._sink.probe()

    def peek(self) -> SinkPosition | None:
        return self._sink.peek()

    def clear(self, run: int) -> None:
        self._sink.clear(run)

    def open(self, run: int) -> SinkPosition | None:
        return self._sink.open(run)

    def roll_back(self, run: int, epoch: int) -> None:
        self._sink.roll_back(run, epoch)

    def publish(self, publication: Publication) -> None:
        rows = outbox_rows(publication)
        if rows is None:
            self._sink.publish(publication)
            return
        transformed = self._transformed(rows, publication)
        if not transformed.num_rows:
            self._sink.skip(publication)
            return
        data = encode_outbox(transformed)
        path = f"transformed.{digest(data)}.parquet"
        store = MemoryStore()
        store.put(path, data)
        file = pb.OutboxFile(path=path, size=len(data), rows=transformed.num_rows, crc32c=crc32c(data))
        self._sink.publish(replace(publication, files=(file,), store=store))

    def skip(self, publication: Publication) -> None:
        self._sink.skip(publication)

    def _transformed(self, rows: pa.Table, publication: Publication) -> pa.Table:
        where = f"{self.label}, epoch {publication.epoch}, {rows.num_rows} rows"
        try:
            transformed = self._transform(rows)
        except (Exception, SystemExit) as error:
            raise SinkError(
                f"the function before {self.label} raised {error_text(error)}",
                where=f"{where}; {raised_at(error)}",
                fix="fix the function and start the job again: the epoch is committed, and is published first",
            ) from error
        try:
            return transformed.select(self._schema.names).cast(self._schema)
        except (KeyError, ValueError) as error:
            raise InputError(
                f"the function before the sink returned {transformed.schema.names}, not {self._schema.names}: {error}",
                where=where,
                fix="return the same columns and types for every epoch",
            ) from error
