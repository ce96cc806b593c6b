"""Base class of processes: a class with states, outputs, and functions over the rows and timers of an epoch.

A process must be deterministic: the same rows, states and clock must produce the same results. It must not use random
numbers, the system clock or external data, and may keep state only in its states. A step that changes attributes of the
instance fails.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import pyarrow as pa

from statebed.errors import InputError
from statebed.format.stream_schema import Changes
from statebed.operators.process.states import State

if TYPE_CHECKING:
    from statebed.operators.process.context import Context

Given: TypeAlias = pa.Table | pa.RecordBatch | None
"""Type of what the functions of a process return."""


class Process:
    """Base class of processes over whole batches.

    >>> import pyarrow as pa, pyarrow.compute as pc
    >>> class Count(sb.Process):
    ...     seen = sb.ValueState("n bigint")
    ...     output = "driver string, n bigint"
    ...     def on_batch(self, rows, ctx):
    ...         n = pc.add(pc.fill_null(ctx.get(self.seen)["n"], 0), pa.array(ctx.key_sizes))
    ...         ctx.put(self.seen, pa.table({"n": n}))
    ...         return ctx.keys.append_column("n", n)
    >>> flow = sb.Flow()
    >>> rides = flow.source("driver string, ts timestamp", name="rides", watermark=("ts", "0s"))
    >>> counts = rides.key_by("driver", name="counts").process(Count())
    >>> with sb.testing.run(flow) as test:
    ...     test.feed("rides", [{"driver": "ann", "ts": "2026-01-01T12:00:00Z"}] * 2)
    ...     [row["n"] for row in test.output("counts")]
    [2]
    """

    output: ClassVar[str | pa.Schema]
    """Columns of the main output, as SQL text or a schema."""
    side_outputs: ClassVar[Mapping[str, str | pa.Schema]] = {}
    """Columns of side outputs by name."""
    changes: ClassVar[Changes] = Changes.APPEND
    """Kind of the main output: append-only, or a changelog with a `_weight` column."""
    shown_names: ClassVar[Mapping[str, str]] = {}
    """Names in errors of functions that the user writes under another name."""

    def on_batch(self, rows: pa.RecordBatch, ctx: "Context") -> Given:
        """Process the rows of an epoch, grouped by key and sorted by event time, then by all columns."""
        raise NotImplementedError

    def on_timer(self, timers: pa.RecordBatch, ctx: "Context") -> Given:
        """Process due timers: the key columns and `at`, sorted by time and key."""
        raise NotImplementedError

    @classmethod
    def states(cls) -> dict[str, State]:
        """Return the states of the class by name."""
        names = {name for base in cls.__mro__ for name in vars(base)}
        attributes = {name: getattr(cls, name) for name in sorted(names)}
        return {name: state for name, state in attributes.items() if isinstance(state, State)}

    @classmethod
    def lacks(cls) -> str:
        """Return the signature of the function that the class must define but does not; empty if it does."""
        return "on_batch(self, rows, ctx)" if cls.on_batch is Process.on_batch else ""

    @classmethod
    def has_timers(cls) -> bool:
        """Return whether the class handles timers."""
        return cls.on_timer is not Process.on_timer


def check_process(process: Process, *, where: str) -> None:
    """Raise InputError if a process is incomplete."""
    kind = type(process)
    if not isinstance(process, Process):
        raise InputError(f"{process!r} is not a process", where=where, fix="pass an instance of a subclass of Process")
    if kind.lacks():
        name = kind.lacks().partition("(")[0]
        raise InputError(f"{kind.__name__} has no {name}", where=where, fix=f"define {kind.lacks()}")
    if not hasattr(process, "output"):
        raise InputError(
            f"{kind.__name__} does not declare its output",
            where=where,
            fix="declare it, for example output = 'card string, n bigint'",
        )
    hidden = [name for name in vars(process) if isinstance(getattr(process, name), State)]
    if hidden:
        raise InputError(
            f"the states {hidden} are assigned to the instance", where=where, fix="assign them in the class body"
        )
