"""State of updating joins in the layout of earlier versions: one row per key, with a list of its rows and weights.

It is only read, to be rewritten with one state row per element.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.columns import from_numpy, int64_values, one_chunk
from statebed.format.schema import TIME, TIMESTAMP
from statebed.format.stream_schema import WEIGHT
from statebed.operators.keyed_rows import taken
from statebed.operators.operator import Clock
from statebed.operators.time_to_live import TimeToLive, by_event_time, keyed_config
from statebed.state import TableConfig

Integers = npt.NDArray[np.int64]

ROWS = "rows"
"""Column of the list."""
_WRITTEN = "_written"
"""Field of a list item with the time of the epoch that last added it."""


@dataclass(frozen=True)
class WeightedLists:
    """Table of one side."""

    name: str
    keys: tuple[pa.Field, ...]
    values: Sequence[pa.Field]
    """Columns of rows that are not keys, and `_time`."""
    ttl: TimeToLive | None

    @cached_property
    def config(self) -> TableConfig:
        more = [pa.field(WEIGHT, pa.int64()), *([pa.field(_WRITTEN, TIMESTAMP)] if self._by_epoch else [])]
        rows = pa.field(ROWS, pa.list_(pa.struct([*self.values, *more])))
        return keyed_config(self.name, "rows by key, with their weights", self.keys, [rows], self.ttl)

    @property
    def _by_epoch(self) -> bool:
        return self.ttl is not None and not by_event_time(self.ttl)

    def rows(self, lists: pa.Table, clock: Clock) -> tuple[pa.Table, pa.Table, Integers]:
        """Return the keys, the values and the weights of all list items that have not expired."""
        column = one_chunk(lists[ROWS])
        lengths = np.diff(int64_values(column.offsets.cast(pa.int64())))
        places = np.repeat(np.arange(len(column), dtype=np.int64), lengths)
        items = column.flatten()
        columns = dict(zip((field.name for field in items.type), items.flatten(), strict=True))
        at = np.arange(len(items), dtype=np.int64)
        until = _expired_until(self.ttl, clock)
        if until is not None:
            at = np.flatnonzero(int64_values(columns[_WRITTEN if self._by_epoch else TIME]) > until)
        indices = from_numpy(at, pa.int64())
        values = pa.table({field.name: columns[field.name].take(indices) for field in self.values})
        keys = taken(lists.select([key.name for key in self.keys]), places[at])
        return keys, values, int64_values(columns[WEIGHT].take(indices))


def _expired_until(ttl: TimeToLive | None, clock: Clock) -> int | None:
    """Return the time at or before which rows have expired; None if no row has."""
    if ttl is None:
        return None
    now = clock.late_us if by_event_time(ttl) else clock.epoch_time_us
    return None if now is None else now - ttl.span_us
