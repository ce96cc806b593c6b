"""Base class of statebed's sinks: a name, a description, and checks before a run opens.

User-defined sinks need not derive from it; `statebed.checkpoint.Sink` lists what they must have.
"""

import abc
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from statebed.checkpoint import Publication
from statebed.errors import FencedError, SinkError
from statebed.format.names import check_name
from statebed.protocol import Guarantee, SinkIdentity, SinkPosition
from statebed.sinks.places import Place


class BaseSink(abc.ABC):
    """Base class of sinks. By default a sink keeps no position."""

    guarantee: ClassVar[Guarantee] = Guarantee.AT_LEAST_ONCE
    kind: str = ""
    """Kind of the sink in records; empty for a user-defined sink."""
    keeps_position: ClassVar[bool] = False
    """Whether run and epoch are stored in the target, so that a missing position means a missing target."""
    shares_target: ClassVar[bool] = False
    """Whether another sink may write to the same target, which then has the rows of both."""

    def __init__(self, sink_id: str) -> None:
        self._sink_id = check_name("sink", sink_id)
        self._owner = ""
        self.unnamed_rows = ""
        """Rows as the user wrote them, such as `key_by(driver).agg`; empty if the sink or the operator has a name."""
        self.place: Place | None = None
        """Folder or file that the sink writes to, from which other sinks are kept away; None if it has none."""

    @property
    def sink_id(self) -> str:
        return self._sink_id

    @property
    def label(self) -> str:
        """Name in errors: `sink rides`, or `the sink of group_by(driver).agg` if its name is derived from a digest."""
        return f"the sink of {self.unnamed_rows}" if self.unnamed_rows else f"sink {self._sink_id}"

    @property
    @abc.abstractmethod
    def described(self) -> str:
        """One-line description for `explain()`: what is written where. Never contains a secret."""

    @property
    def target(self) -> str:
        """Target of the sink, normalised and without secrets; empty if it has none.

        No two sinks of a job may have the same target, unless they share it.
        """
        return ""

    @property
    def identity(self) -> SinkIdentity:
        """Identity that records store."""
        return SinkIdentity(kind=self.kind, target=self.target, keeps_position=self.keeps_position)

    def rename(self, sink_id: str) -> None:
        """Set another name; must be called before the sink is opened."""
        self._sink_id = check_name("sink", sink_id)
        self._owner = f"{self._owner.rpartition('/')[0]}/{sink_id}" if self._owner else ""

    def owner_of_target(self) -> str:
        """Return the owner stored in the target, as "job/sink"; empty if there is none or it is unknown."""
        return ""

    def check(self, *, last_number: int) -> None:  # noqa: B027 - not every sink has a place
        """Raise InputError if the target cannot belong to this sink. Called before a run opens; writes nothing.

        `last_number` is the newest number of the job's log; a target with a newer number belongs to another log.
        """

    def probe(self) -> None:  # noqa: B027 - not every sink has a place
        """Raise an error if the target is not writable. Called before a run opens, after all checks."""

    def peek(self) -> SinkPosition | None:
        """Return the position, or None, without opening the sink or writing anything."""
        return None

    def open(self, run: int) -> SinkPosition | None:  # noqa: ARG002 - for sinks that remember the run
        """Fence older runs, and return the position before that, or None if the sink keeps none."""
        return None

    def roll_back(self, run: int, epoch: int) -> None:  # noqa: B027 - not every sink can
        """Retract everything after `epoch`. Only called for sinks with a position."""

    def clear(self, run: int) -> None:
        """Retract everything, before it is written again. Only called for sinks with a position."""
        self.roll_back(run, 0)

    @abc.abstractmethod
    def publish(self, publication: Publication) -> None:
        """Write the epoch; do nothing if the sink already has it."""

    def skip(self, publication: Publication) -> None:
        """Advance to an epoch without its rows: the function before the sink left none, or the user gave them up."""
        self.publish(replace(publication, files=(), commit_data=()))

    def fenced(self, run: int, newer: int, *, where: str = "") -> FencedError:
        """Return the error to raise if a newer run has opened the sink."""
        return FencedError(
            f"{self.label} was opened by run {newer}; run {run} is superseded",
            where=where,
            fix="do not restart this process: a newer run owns the job",
        )


def outbox_rows(publication: Publication) -> pa.Table | None:
    """Return the rows of an epoch as one table, or None if it has no output."""
    tables = [pq.ParquetFile(pa.BufferReader(publication.read(file))).read() for file in publication.files]
    for table in tables:
        _check_texts(table, publication)
    return pa.concat_tables(tables) if tables else None


def outbox_batches(publication: Publication, rows: int, *, any_bytes: bool = False) -> Iterator[pa.RecordBatch]:
    """Yield the rows of an epoch in batches of at most `rows`, with one file in memory at a time. With `any_bytes`,
    text need not be UTF-8.
    """
    for file in publication.files:
        for batch in pq.ParquetFile(pa.BufferReader(publication.read(file))).iter_batches(batch_size=rows):
            if not any_bytes:
                _check_texts(batch, publication)
            yield batch


def _check_texts(rows: pa.Table | pa.RecordBatch, publication: Publication) -> None:
    """Raise SinkError if a text is not UTF-8. Spark keeps such bytes, for example when it casts binary to string."""
    with contextlib.suppress(pa.ArrowInvalid):
        rows.validate(full=True)
        return
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            if "UTF8" in str(error):
                raise not_utf8(name, where=f"epoch {publication.epoch}") from error


def not_utf8(column: str, *, where: str) -> SinkError:
    """Return the error for text that a sink cannot write."""
    return SinkError(
        f"a row has text in the column {column} that is not UTF-8",
        where=where,
        fix=f"repair the text before the sink: with_columns({column}='make_valid_utf8({column})')",
    )
