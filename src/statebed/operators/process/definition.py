"""What users write: a class with states, outputs, and functions over the rows and the timers of an epoch.

A process must give the same for the same rows, states and clock: no chance, no clock of its own, nothing read from
elsewhere, and nothing remembered but in its states. An instance whose attributes change during a step is refused.
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
"""What the functions of a process may give back."""


class Process:
    """The base of processes over whole batches.

    class Count(Process):
        seen = ValueState("n bigint")
        output = "user string, n bigint"

        def on_batch(self, rows, ctx):
            n = pc.add(pc.fill_null(ctx.get(self.seen)["n"], 0), pa.array(ctx.key_sizes))
            ctx.put(self.seen, pa.table({"n": n}))
            return ctx.keys.append_column("n", n)
    """

    output: ClassVar[str | pa.Schema]
    """The columns of what it gives: SQL text, or a schema."""
    side_outputs: ClassVar[Mapping[str, str | pa.Schema]] = {}
    """More outputs, by name."""
    changes: ClassVar[Changes] = Changes.APPEND
    """Whether what it gives only adds, or is a changelog with a column `_weight`."""
    shown_names: ClassVar[Mapping[str, str]] = {}
    """What the user calls the functions of this class, where that is something else; for errors."""

    def on_batch(self, rows: pa.RecordBatch, ctx: "Context") -> Given:
        """Take the rows of an epoch: those of a key stand together, by event time and then by all columns."""
        raise NotImplementedError

    def on_timer(self, timers: pa.RecordBatch, ctx: "Context") -> Given:
        """Take the timers that are due: the key columns and `at`, by time and key."""
        raise NotImplementedError

    @classmethod
    def states(cls) -> dict[str, State]:
        """Its states, by name."""
        names = {name for base in cls.__mro__ for name in vars(base)}
        found = {name: getattr(cls, name) for name in sorted(names)}
        return {name: one for name, one in found.items() if isinstance(one, State)}

    @classmethod
    def lacks(cls) -> str:
        """The function that has to be written, if it is not."""
        return "on_batch(self, rows, ctx)" if cls.on_batch is Process.on_batch else ""

    @classmethod
    def has_timers(cls) -> bool:
        """Whether it does anything when a timer fires."""
        return cls.on_timer is not Process.on_timer


def check_process(process: Process, *, where: str) -> None:
    """Refuse a process that lacks what it must have."""
    kind = type(process)
    if not isinstance(process, Process):
        raise InputError(f"{process!r} is no process", where=where, fix="give an instance of a class made from Process")
    if kind.lacks():
        name = kind.lacks().partition("(")[0]
        raise InputError(f"{kind.__name__} has no {name}", where=where, fix=f"write def {kind.lacks()}")
    if not hasattr(process, "output"):
        raise InputError(
            f"{kind.__name__} does not say what it gives", where=where, fix="write output = 'card string, n bigint'"
        )
    hidden = [name for name in vars(process) if isinstance(getattr(process, name), State)]
    if hidden:
        raise InputError(
            f"the states {hidden} are attributes of the instance", where=where, fix="assign them in the class's body"
        )
