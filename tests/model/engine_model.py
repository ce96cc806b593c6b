"""Expected contents of the engine's tables, as plain dicts: the model that the state machine compares the engine with.

Four tables have the same columns (a key, a number, a text; a time where rows have one), so that one kind of row and one
set of steps serves all: `totals` (keyed), `visits` (keyed, expiring by event time), `fares` (time keyed) and `prices`
(time keyed, generational). `counters` is a global keyed table. A column `extra` comes and goes with the definition of
the tables. A model is copied where an epoch is committed, and put back where it is restored.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

TIME_TO_LIVE_US = 40
RETENTION_US = 60
EXTRA_DEFAULT = 7
COUNTERS = "counters"
TOTALS = "totals"
VISITS = "visits"
FARES = "fares"
PRICES = "prices"
KEYED = (TOTALS, VISITS)
TIME_KEYED = (FARES, PRICES)
TIMED = (VISITS, FARES, PRICES)
TABLES = (*KEYED, *TIME_KEYED)
_LONG_AGO = -(1 << 62)


class Row(NamedTuple):
    """A row of any table but the global one; without meaning in `totals`, its time is 0 there."""

    key: int | None
    time: int
    number: int
    text: str | None
    extra: int | None = None


Rows = Counter[Row]


@dataclass
class Model:
    """The state of all tables, of all subtasks together."""

    counters: dict[str, int] = field(default_factory=dict)
    keyed: dict[str, dict[int | None, Row]] = field(default_factory=lambda: {name: {} for name in KEYED})
    fares: Rows = field(default_factory=Counter)
    prices: dict[tuple[int | None, int], Row] = field(default_factory=dict)
    watermark_us: int | None = None
    has_extra: bool = False

    def copy(self) -> "Model":
        keyed = {name: dict(rows) for name, rows in self.keyed.items()}
        return Model(
            dict(self.counters), keyed, self.fares.copy(), dict(self.prices), self.watermark_us, self.has_extra
        )

    # ---- reading -----------------------------------------------------------------------------------------

    def rows(self, table: str) -> Rows:
        """All rows of a table."""
        if table in KEYED:
            return Counter(self.keyed[table].values())
        return self.fares.copy() if table == FARES else Counter(self.prices.values())

    def at(self, table: str, key: int | None) -> Row | None:
        """The row of a key in a keyed table."""
        return self.keyed[table].get(key)

    # ---- writing -----------------------------------------------------------------------------------------

    def upsert(self, table: str, batch: Sequence[Row]) -> None:
        for row in batch:
            old = self.keyed[table].get(row.key)
            self._put(table, row if old is None else row._replace(time=max(old.time, row.time)))

    def merge(self, table: str, batch: Sequence[Row]) -> None:
        """Numbers are added, of texts the greater one stays."""
        folded: dict[int | None, Row] = {}
        for row in batch:
            folded[row.key] = _merged(folded[row.key], row) if row.key in folded else row
        for key, row in folded.items():
            old = self.keyed[table].get(key)
            self._put(table, row if old is None else _merged(old, row))

    def append(self, table: str, batch: Sequence[Row]) -> None:
        for row in batch:
            if row.time < self._kept_from:
                continue
            if table == FARES:
                self.fares[row] += 1
            else:
                self.prices[row.key, row.time] = row

    def write(self, table: str, batch: Sequence[Row]) -> None:
        """Apply the operation Insert."""
        (self.upsert if table in KEYED else self.append)(table, batch)

    def delete_keys(self, table: str, keys: Iterable[int | None]) -> None:
        gone = set(keys)
        self._delete(table, [row for row in self.rows(table) if row.key in gone])

    def delete_at(self, table: str, batch: Sequence[Row]) -> None:
        """The rows of each key at its time."""
        gone = {(row.key, row.time) for row in batch}
        self._delete(table, [row for row in self.rows(table) if (row.key, row.time) in gone])

    def delete_values(self, table: str, batch: Sequence[Row]) -> None:
        """The rows of each key that have these values, at any time."""
        gone = {row._replace(time=0) for row in batch}
        self._delete(table, [row for row in self.rows(table) if row._replace(time=0) in gone])

    def delete_times(self, table: str, start_us: int, end_us: int) -> None:
        self._delete(table, [row for row in self.rows(table) if start_us <= row.time < end_us])

    def advance(self, watermark_us: int) -> None:
        """Move the watermark, never back; rows leave whose time is over."""
        if self.watermark_us is None or watermark_us > self.watermark_us:
            self.watermark_us = watermark_us
        self._delete(VISITS, [row for row in self.rows(VISITS) if row.time <= self._expired_until])
        for table in TIME_KEYED:
            self._delete(table, [row for row in self.rows(table) if row.time < self._kept_from])

    def evolve(self, *, has_extra: bool) -> None:
        """The tables with the column `extra`, or without it; rows from before it was added have its default."""
        if has_extra != self.has_extra:
            value = EXTRA_DEFAULT if has_extra else None
            self.has_extra = has_extra
            self.keyed = {
                name: {key: row._replace(extra=value) for key, row in rows.items()} for name, rows in self.keyed.items()
            }
            fares: Rows = Counter()
            for row, count in self.fares.items():
                fares[row._replace(extra=value)] += count
            self.fares = fares
            self.prices = {key: row._replace(extra=value) for key, row in self.prices.items()}

    @property
    def _expired_until(self) -> int:
        return _LONG_AGO if self.watermark_us is None else self.watermark_us - TIME_TO_LIVE_US

    @property
    def _kept_from(self) -> int:
        return _LONG_AGO if self.watermark_us is None else self.watermark_us - RETENTION_US

    def _put(self, table: str, row: Row) -> None:
        if table == VISITS and row.time <= self._expired_until:
            return
        self.keyed[table][row.key] = row

    def _delete(self, table: str, rows: Iterable[Row]) -> None:
        for row in list(rows):
            if table in KEYED:
                del self.keyed[table][row.key]
            elif table == FARES:
                del self.fares[row]
            else:
                del self.prices[row.key, row.time]


def _merged(old: Row, new: Row) -> Row:
    texts = [text for text in (old.text, new.text) if text is not None]
    extras = [extra for extra in (old.extra, new.extra) if extra is not None]
    number, time = old.number + new.number, max(old.time, new.time)
    return Row(new.key, time, number, max(texts, default=None), max(extras, default=None))
