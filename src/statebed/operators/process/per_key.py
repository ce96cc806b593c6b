"""Processes written for one key at a time over plain rows: convenient, but slow.

    class Fraud(ProcessKey):
        last = ValueState("amount double")
        output = "card string, reason string"

        def on_rows(self, key, rows, state, ctx):
            for row in rows:
                before = state.last.get()
                if before and row["amount"] > 10 * before["amount"]:
                    yield {"card": key, "reason": "ten times the last one"}
                state.last.put(amount=row["amount"])

Values of all keys of the batch are read together when a state is first used, lists and maps for several keys at a time;
all changes are written together at the end. The rest runs in Python, at a few hundred thousand rows per second at best.
Times are datetimes, so they are limited to the years 1 to 9999.
"""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from statebed.errors import InputError
from statebed.expressions.type_text import schema_of
from statebed.operators.process.context import Context
from statebed.operators.process.definition import Process
from statebed.operators.process.dict_rows import rows_as_table
from statebed.operators.process.key_context import KeyContext
from statebed.operators.process.key_states import KeyStates

Row = dict[str, Any]
Rows = Any
"""Type of the rows: a list of dicts, or a pandas DataFrame."""


class ProcessKey(Process):
    """Base class of processes over the rows of one key.

    >>> class Basket(sb.ProcessKey):
    ...     items = sb.ListState("article string")
    ...     output = "articles bigint"
    ...     def on_rows(self, key, rows, state, ctx):
    ...         for row in rows:
    ...             state.items.append(article=row["article"])
    ...         yield {"articles": len(rows)}
    >>> flow = sb.Flow()
    >>> clicks = flow.source("clicks", "customer string, article string, ts timestamp", watermark=("ts", "0s"))
    >>> added = clicks.key_by("customer", name="added").process(Basket())
    >>> with sb.testing.run(flow) as test:
    ...     test.feed("clicks", [{"customer": "ann", "article": "tea", "ts": "2026-01-01T12:00:00Z"}])
    ...     test.output("added")[0]["articles"]
    1
    """

    rows_as: ClassVar[str] = "dicts"
    """Form of the rows passed to `on_rows`: "dicts" (a list of dicts) or "pandas" (a DataFrame)."""
    shown_names: ClassVar[dict[str, str]] = {"on_batch": "on_rows", "on_timer": "on_key_timer"}

    def on_rows(self, key: Any, rows: Rows, state: KeyStates, ctx: KeyContext) -> Iterable[Row] | None:
        """Process the rows of one key, sorted by event time. `key` is its value, or a tuple if there are several key
        columns.
        """
        raise NotImplementedError

    def on_key_timer(self, key: Any, times: list[Any], state: KeyStates, ctx: KeyContext) -> Iterable[Row] | None:
        """Process the due timers of one key, sorted by time."""
        raise NotImplementedError

    @classmethod
    def lacks(cls) -> str:
        return "on_rows(self, key, rows, state, ctx)" if cls.on_rows is ProcessKey.on_rows else ""

    @classmethod
    def has_timers(cls) -> bool:
        return cls.on_key_timer is not ProcessKey.on_key_timer

    def on_batch(self, rows: pa.RecordBatch, ctx: Context) -> pa.Table:
        """Call `on_rows` for every key of the batch."""
        if self.rows_as not in {"dicts", "pandas"}:
            raise InputError(
                f"`rows_as` must be 'dicts' or 'pandas', got {self.rows_as!r}",
                where=ctx.where,
                fix="use 'dicts' or 'pandas'",
            )
        starts = ctx.key_starts.tolist()
        ends = [*starts[1:], rows.num_rows]
        frame = rows.to_pandas() if self.rows_as == "pandas" else rows.to_pylist()
        parts = [
            frame.iloc[start:end].reset_index(drop=True) if self.rows_as == "pandas" else frame[start:end]
            for start, end in zip(starts, ends, strict=True)
        ]
        return self._for_each(ctx, parts, self.on_rows)

    def on_timer(self, timers: pa.RecordBatch, ctx: Context) -> pa.Table:
        """Call `on_key_timer` for every key that has timers."""
        times = timers["at"].to_pylist()
        parts: list[list[Any]] = [[] for _ in range(ctx.keys.num_rows)]
        for place, time in zip(ctx.key_index.tolist(), times, strict=True):
            parts[place].append(time)
        return self._for_each(ctx, parts, self.on_key_timer)

    def _for_each(self, ctx: Context, parts: Sequence[Any], function: Any) -> pa.Table:
        states = KeyStates(ctx, type(self).states())
        calls = KeyContext(ctx)
        returned: list[Row] = []
        for place, (key, part) in enumerate(zip(_plain_keys(ctx.keys), parts, strict=True)):
            states.turn_to(place)
            calls.turn_to(place)
            returned.extend(_iterable(function(key, part, states, calls), type(self), where=ctx.where))
        states.write()
        calls.write({name: schema_of(columns) for name, columns in self.side_outputs.items()})
        return rows_as_table(returned, schema_of(self.output), what="returned rows", where=ctx.where)


def _iterable(rows: object, kind: type[ProcessKey], *, where: str) -> Iterable[Row]:
    """Return the rows that a function returned, none for None."""
    if rows is None:
        return ()
    if not isinstance(rows, Iterable) or isinstance(rows, str | bytes):
        raise InputError(
            f"a function of {kind.__name__} must yield rows, or return a list of them or None; "
            f"it returned {type(rows).__name__}",
            where=where,
            fix="yield a dict for each row",
        )
    return rows


def _plain_keys(keys: pa.Table) -> list[Any]:
    columns = [column.to_pylist() for column in keys.columns]
    return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
