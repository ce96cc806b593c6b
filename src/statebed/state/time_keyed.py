"""Time-keyed tables."""

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True)
class TimeKeyedTable:
    """The definition of a time-keyed table."""

    name: str
    description: str
    keys: tuple[pa.Field, ...]
    values: tuple[pa.Field, ...]
    bin_us: int
