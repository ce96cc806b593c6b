"""Definition of time-keyed tables: rows in time bins, appended by epochs, deleted by time range."""

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from statebed.format import checkpoint_pb2 as pb
from statebed.format.schema import assign_field_ids
from statebed.format.segment import segment_schema

MAX_FILES = 8
"""Maximum number of files in one subtask's table; more are compacted."""


@dataclass(frozen=True)
class TimeKeyedTable:
    """Definition of a time-keyed table."""

    name: str
    description: str
    keys: tuple[pa.Field, ...]
    values: tuple[pa.Field, ...]
    bin_us: int

    @cached_property
    def columns(self) -> pa.Schema:
        """Keys and values, with their field ids."""
        return assign_field_ids(pa.schema([*self.keys, *self.values]), where=f"table {self.name!r}")

    @cached_property
    def file_schema(self) -> pa.Schema:
        """Schema of its files."""
        names = [key.name for key in self.keys]
        return segment_schema(self.columns, sort_order=pb.BIN_FIRST, key_columns=names)
