"""Rows exchanged between operators: their columns, keys, event time and, in a changelog, their weight."""

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.columns import int64_values
from statebed.format.schema import KEY_HASH, RESERVED_FIELDS, TIME, TIMESTAMP, check_user_columns

WEIGHT = "_weight"
"""Weight of a row in a changelog: positive counts are insertions, negative ones retractions."""


def check_stream_columns(names: Iterable[str], *, where: str = "") -> None:
    """Raise InputError for names that columns of a stream cannot have.

    That includes `_weight` in append-only streams, too: operators and sinks would take such a column for weights.
    """
    check_user_columns(names, where=where, reserved=(*RESERVED_FIELDS, WEIGHT))


class Changes(enum.Enum):
    """Kind of a stream: append-only or a changelog."""

    APPEND = "append"
    """Rows are only added."""
    CHANGELOG = "changelog"
    """Each row has a weight: +n inserts it n times, -n retracts it n times."""


@dataclass(frozen=True)
class Input:
    """Rows that an operator reads."""

    name: str
    columns: pa.Schema
    """The user's columns, including keys."""
    keys: tuple[str, ...]
    """Columns by whose hash rows are routed; without any, one subtask has all rows."""
    changes: Changes = Changes.APPEND
    broadcast: bool = False
    """Whether every subtask gets all rows. They then do not count for the watermark."""

    @cached_property
    def schema(self) -> pa.Schema:
        """Columns of the batches: `_key_hash`, `_time`, the user's, and `_weight` in a changelog."""
        leading = [pa.field(KEY_HASH, pa.int64()), pa.field(TIME, TIMESTAMP)]
        return pa.schema([*leading, *self.columns, *_weight(self.changes)])


@dataclass(frozen=True)
class Output:
    """Rows that an operator emits."""

    columns: pa.Schema
    changes: Changes = Changes.APPEND

    @cached_property
    def schema(self) -> pa.Schema:
        """Columns of the rows: the user's, `_time`, and `_weight` in a changelog."""
        return pa.schema([*self.columns, pa.field(TIME, TIMESTAMP), *_weight(self.changes)])


def _weight(changes: Changes) -> list[pa.Field]:
    return [pa.field(WEIGHT, pa.int64(), nullable=False)] if changes is Changes.CHANGELOG else []


def weights_of(rows: pa.Table) -> npt.NDArray[np.int64]:
    """Return the weight of each row; 1 in an append-only stream."""
    if WEIGHT in rows.schema.names:
        return int64_values(rows[WEIGHT])
    return np.ones(rows.num_rows, dtype=np.int64)
