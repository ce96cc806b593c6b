"""Rows that travel between operators: their columns, keys, event time and, in a changelog, their weight."""

import enum
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.columns import int64_values
from statebed.format.schema import KEY_HASH, TIME, TIMESTAMP

WEIGHT = "_weight"
"""In a changelog: how many times the row is added (or, below zero, taken away)."""


class Changes(enum.Enum):
    """What the rows of a stream do to what came before."""

    APPEND = "append"
    """Each row is added, for good."""
    CHANGELOG = "changelog"
    """Each row has a weight: +n adds it n times, -n takes it away n times."""


@dataclass(frozen=True)
class Input:
    """Rows that an operator takes."""

    name: str
    columns: pa.Schema
    """Of the user, keys too."""
    keys: tuple[str, ...]
    """By the hash of which rows are routed; none: one subtask has all rows."""
    changes: Changes = Changes.APPEND

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of its batches: `_key_hash`, `_time`, the user's, in a changelog `_weight`."""
        leading = [pa.field(KEY_HASH, pa.int64()), pa.field(TIME, TIMESTAMP)]
        return pa.schema([*leading, *self.columns, *_weight(self.changes)])


@dataclass(frozen=True)
class Output:
    """Rows that an operator gives."""

    columns: pa.Schema
    changes: Changes = Changes.APPEND

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of its rows: the user's, `_time`, in a changelog `_weight`."""
        return pa.schema([*self.columns, pa.field(TIME, TIMESTAMP), *_weight(self.changes)])


def _weight(changes: Changes) -> list[pa.Field]:
    return [pa.field(WEIGHT, pa.int64(), nullable=False)] if changes is Changes.CHANGELOG else []


def weights_of(rows: pa.Table) -> npt.NDArray[np.int64]:
    """The weight of each row; 1 where the stream only adds."""
    if WEIGHT in rows.schema.names:
        return int64_values(rows[WEIGHT])
    return np.ones(rows.num_rows, dtype=np.int64)
