"""State of updating joins as earlier versions kept it: for each key one row with a list of its rows and weights.

It is only read, to be written again as rows of their own.
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
"""The column with the list."""
_WRITTEN = "_written"
"""In a row of the list: the time of the epoch that added it last."""


@dataclass(frozen=True)
class WeightedLists:
    """The table of one side."""

    name: str
    keys: tuple[pa.Field, ...]
    values: Sequence[pa.Field]
    """The columns of rows that are not keys, and `_time`."""
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
        """The rows of lists that have not expired: the key, the values, and the weight of each."""
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
    """Rows with times up to this have expired; None: none has."""
    if ttl is None:
        return None
    now = clock.late_us if by_event_time(ttl) else clock.epoch_time_us
    return None if now is None else now - ttl.span_us
