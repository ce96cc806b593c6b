"""Sample change events of two tables, as Debezium envelopes: inserts, updates, deletes, and some events twice."""

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from examples.sample_files import add_lines

Row = dict[str, Any]
EVENTS_PER_FILE = 500


@dataclass
class Shop:
    """A database with two tables, whose log positions grow with every change."""

    chance: random.Random
    lsn: int
    orders: dict[int, Row] = field(default_factory=dict)
    payments: dict[int, Row] = field(default_factory=dict)

    def change(self) -> tuple[str, str]:
        """Change a row; return the name of its table and the envelope."""
        self.lsn += 8
        kind = self.chance.choices(("order", "payment", "change", "cancel", "refund"), (40, 40, 8, 6, 6))[0]
        if kind == "order" or not self.orders or (kind == "refund" and not self.payments):
            row = {"id": self.lsn, "customer": f"customer-{self.chance.randrange(50)}", "total_cents": self._cents()}
            return self._put("orders", self.orders, row)
        if kind == "payment":
            row = {"id": self.lsn, "order_id": self.chance.choice(list(self.orders)), "cents": self._cents()}
            return self._put("payments", self.payments, row)
        if kind == "change":
            order = self.orders[self.chance.choice(list(self.orders))]
            return self._put("orders", self.orders, order | {"total_cents": self._cents()})
        table, rows = ("orders", self.orders) if kind == "cancel" else ("payments", self.payments)
        before = rows.pop(self.chance.choice(list(rows)))
        return table, self._envelope("d", before, None)

    def _put(self, table: str, rows: dict[int, Row], row: Row) -> tuple[str, str]:
        before = rows.get(row["id"])
        rows[row["id"]] = row
        return table, self._envelope("c" if before is None else "u", before, row)

    def _envelope(self, op: str, before: Row | None, after: Row | None) -> str:
        return json.dumps({"before": before, "after": after, "op": op, "source": {"lsn": self.lsn}})

    def _cents(self) -> int:
        return self.chance.randrange(1, 100) * 100


def add_events(folder: Path, *, files: int, seed: int = 1) -> int:
    """Add `files` files of changes for each table; return the number of events. One in twenty is delivered twice."""
    first = len(list((folder / "orders").glob("*.json")))
    shop = Shop(random.Random(seed), lsn=0)
    count = 0
    for number in range(first + files):
        events: dict[str, list[str]] = {"orders": [], "payments": []}
        for _ in range(EVENTS_PER_FILE):
            table, envelope = shop.change()
            events[table] += [envelope] * (2 if shop.chance.random() < 1 / 20 else 1)
        if number >= first:  # the earlier ones are replayed in memory only
            for table, envelopes in events.items():
                add_lines(folder / table, envelopes)
                count += len(envelopes)
    return count
