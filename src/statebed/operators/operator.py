"""What every operator is: a definition that travels with tasks, the tables it keeps, and one pure step per epoch.

Rows go in as Arrow batches with their key hash, their event time and, in a changelog, their weight; they come out in
the same way. An operator object holds its definition and nothing else: all that it remembers is in its tables, which
are bounded, checkpointed and rescaled by the engine. A step is a function of the tables at the base epoch, the rows of
this epoch as a set (they come in any order, cut in any way) and the clock.

Watermarks: a watermark of W says that no row with an event time up to W comes any more. In an epoch a row is late by
the watermark of the epoch before, and results are final by that of this one, as in Spark. `output_watermark` promises
the same for the rows that the operator gives: those of later epochs have event times after it.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from statebed.format import checkpoint_pb2 as pb
from statebed.format.stream_schema import Input, Output
from statebed.state import Combine, KeyedView, TableConfig, TimeKeyedView

MAIN = ""
"""The output that a stream goes on with."""
LATE = "late"
"""The output of rows that came too late; of an operator with several inputs `late_` and the input's name."""


@dataclass(frozen=True)
class Clock:
    """The times of one epoch, the same for all subtasks; microseconds since 1970, None: not known yet."""

    late_us: int | None
    """Rows with event times up to this are late: the watermark of the epoch before."""
    watermark_us: int | None
    """Of this epoch; not before `late_us`."""
    epoch_time_us: int
    """The one instant of processing time."""


@dataclass(frozen=True)
class StepResult:
    """What a step gives, and what became of its rows: admitted + late = input."""

    outputs: Mapping[str, pa.Table]
    """By the output's name; one that is missing has no rows."""
    rows_in: int = 0
    rows_late: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    """What else it counted, by name, such as retractions that found nothing."""
    next_timer_us: int | None = None
    """The first processing time at which a step is due, rows or not; None: there is none."""
    matches: pb.JoinMatches | None = None
    """Of a join by time: rows and event times of both inputs, and pairs found."""


@dataclass(frozen=True)
class Definition:
    """What an operator is, as data: kept in records, compared at every start."""

    described: str
    """JSON."""
    free: frozenset[str] = frozenset()
    """Which of its parts may change while the state stays."""

    @staticmethod
    def of(free: Iterable[str] = (), /, **described: Any) -> "Definition":
        return Definition(json.dumps(described, sort_keys=True), frozenset(free))

    @property
    def fingerprint(self) -> str:
        """Tells one definition from another."""
        return hashlib.sha256(self.described.encode()).hexdigest()[:32]

    @property
    def tables_evolve(self) -> bool:
        """Whether its tables may get other columns: only where their meaning is the user's."""
        return "states" in self.free

    def changes_from(self, stored: str) -> dict[str, tuple[Any, Any]]:
        """The parts that differ from a stored definition: what they were, and what they are."""
        before, after = json.loads(stored), json.loads(self.described)
        names = [*before, *(name for name in after if name not in before)]
        return {name: (before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)}


class Tables(Protocol):
    """The tables of a subtask, by name; a TableManager is one."""

    def get_keyed(self, name: str) -> KeyedView: ...

    def get_time_keyed(self, name: str) -> TimeKeyedView: ...


class Operator(Protocol):
    """A stateful operator. Implementations are frozen dataclasses, picklable, without Spark and without state."""

    @property
    def operator_id(self) -> str: ...

    @property
    def inputs(self) -> tuple[Input, ...]: ...

    @property
    def outputs(self) -> Mapping[str, Output]:
        """MAIN first."""

    @property
    def tables(self) -> Mapping[str, TableConfig]:
        """By name."""

    @property
    def combines(self) -> Mapping[str, Combine]:
        """How rows with one key and time of a time-keyed table become fewer, for those where they may."""

    @property
    def definition(self) -> Definition:
        """What it is; its name is not part of it."""

    def step(self, tables: Tables, batches: Sequence[Iterable[pa.RecordBatch]], clock: Clock) -> StepResult:
        """Apply the rows of one epoch, those of each input as batches of its schema."""

    def output_watermark(self, watermark_us: int) -> int:
        """Up to where the main output is complete when the inputs are up to `watermark_us`."""

    def is_due(self, before_us: int | None, after_us: int) -> bool:
        """Whether the watermark's advance alone, without a row, may change anything."""

    def closing_watermark(self, event_time_us: int) -> int:
        """The watermark at which nothing is open any more that rows up to this event time have begun."""

    def latest_result(self, event_time_us: int) -> int:
        """The greatest event time that a result of rows up to this event time can have."""


@runtime_checkable
class ResultsInState(Protocol):
    """An operator whose state may hold every result that stands, so that a sink can be written anew from it."""

    def why_incomplete(self) -> str:
        """Say why the state lacks results that stand; empty if it holds all of them."""

    def results_in_state(self, tables: Tables) -> Iterator[pa.Table]:
        """Yield the results in the state, as the main output would add them now."""


@runtime_checkable
class Upgrading(Protocol):
    """An operator whose tables had another shape in earlier versions."""

    @property
    def earlier_tables(self) -> Mapping[str, TableConfig]:
        """Those tables, by name, as they were."""

    def upgrade(self, name: str, earlier: KeyedView, tables: Tables, clock: Clock) -> None:
        """Write the rows of a table of an earlier version to the tables of today."""


def earlier_tables(operator: Operator) -> Mapping[str, TableConfig]:
    """The tables of an operator as earlier versions had them; none where they never changed."""
    return operator.earlier_tables if isinstance(operator, Upgrading) else {}


def upgrade_state(operator: Operator, manager: "Upgradable", clock: Clock) -> None:
    """Take over what earlier versions stored of an operator, before its first step."""
    if isinstance(operator, Upgrading):
        manager.upgrade(lambda name, view: operator.upgrade(name, view, manager, clock))


class Upgradable(Tables, Protocol):
    """The tables of a subtask, of which some may be stored in an earlier shape; a TableManager is one."""

    def upgrade(self, move: Callable[[str, KeyedView], None]) -> None: ...
