"""What the sinks of statebed have in common: a name, a line about themselves, and checks before a run opens.

A sink of the user's own needs none of this; `statebed.checkpoint.Sink` says what it must have.
"""

import abc
from collections.abc import Iterator
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from statebed.checkpoint import Publication
from statebed.errors import FencedError
from statebed.format.names import check_name
from statebed.protocol import Guarantee, SinkIdentity, SinkPosition


class BaseSink(abc.ABC):
    """A sink that remembers nothing, until it says otherwise."""

    guarantee: ClassVar[Guarantee] = Guarantee.AT_LEAST_ONCE
    kind: str = ""
    """What it is, as records name it; empty: one of the user's own."""
    keeps_position: ClassVar[bool] = False
    """Whether run and epoch are kept in the target, so that a missing position means a missing target."""
    shares_target: ClassVar[bool] = False
    """Whether another sink may write to the same target, which then has the rows of both."""

    def __init__(self, sink_id: str) -> None:
        self._sink_id = check_name("sink", sink_id)
        self._owner = ""

    @property
    def sink_id(self) -> str:
        return self._sink_id

    @property
    @abc.abstractmethod
    def described(self) -> str:
        """One line for `explain()`: what is written where; never a secret."""

    @property
    def target(self) -> str:
        """Where it writes, in one spelling for one place and without secrets; empty if it has no place of its own.

        No two sinks of a job may have the same one, unless they share it.
        """
        return ""

    @property
    def identity(self) -> SinkIdentity:
        """What records remember about it."""
        return SinkIdentity(kind=self.kind, target=self.target, keeps_position=self.keeps_position)

    @property
    def folder(self) -> str | None:
        """URL of the folder that belongs to this sink alone; None: it has none."""
        return None

    def rename(self, sink_id: str) -> None:
        """Take another name, before anything was opened."""
        self._sink_id = check_name("sink", sink_id)
        self._owner = f"{self._owner.rpartition('/')[0]}/{sink_id}" if self._owner else ""

    def owner_of_target(self) -> str:
        """The job and sink that the target says it belongs to, as "job/sink"; empty: none, or it cannot say."""
        return ""

    def check(self, *, last_number: int) -> None:  # noqa: B027 - not every sink has a place
        """Before a run opens, and without writing: refuse a place that cannot be this sink's.

        `last_number` is the newest number of the job's log; a place that knows a newer one is not of this log.
        """

    def probe(self) -> None:  # noqa: B027 - not every sink has a place
        """Before a run opens, after every check: refuse a place that cannot be written."""

    def peek(self) -> SinkPosition | None:
        """Its position, without opening it and without writing anything."""
        return None

    def open(self, run: int) -> SinkPosition | None:  # noqa: ARG002 - for sinks that remember the run
        """Refuse older runs from now on; its position before that, or None if it keeps none."""
        return None

    def roll_back(self, run: int, epoch: int) -> None:  # noqa: B027 - not every sink can
        """Take back what is newer than `epoch`; never asked of a sink without a position."""

    def clear(self, run: int) -> None:
        """Take back everything, to be written anew; never asked of a sink without a position."""
        self.roll_back(run, 0)

    @abc.abstractmethod
    def publish(self, publication: Publication) -> None:
        """Take the epoch; one that is there already is no error."""

    def fenced(self, run: int, newer: int, *, where: str = "") -> FencedError:
        """What to raise when a newer run has opened the sink."""
        return FencedError(
            f"sink {self._sink_id} was opened by run {newer}; run {run} is superseded",
            where=where,
            fix="do not restart this process: a newer run owns the job",
        )


def outbox_rows(publication: Publication) -> pa.Table | None:
    """The rows of an epoch as one table, or None when it has none."""
    tables = [pq.read_table(pa.BufferReader(publication.read(file))) for file in publication.files]
    return pa.concat_tables(tables) if tables else None


def outbox_batches(publication: Publication, rows: int) -> Iterator[pa.RecordBatch]:
    """The rows of an epoch, at most `rows` at a time and one file in memory."""
    for file in publication.files:
        yield from pq.ParquetFile(pa.BufferReader(publication.read(file))).iter_batches(batch_size=rows)
