"""Interface of every operator: a definition that is shipped with tasks, the tables of its state, and one pure step per
epoch.

Input and output rows are Arrow batches with key hash, event time and, in a changelog, weight. An operator object holds
only its definition: all its memory is in its tables, which are bounded, checkpointed and rescaled by the engine. A step
is a function of the tables at the base epoch, the rows of this epoch as a set (in any order and any batches), and the
clock.

Watermarks: a watermark of W says that no further row has an event time at or before W. As in Spark, the watermark of
the previous epoch decides which rows are late, and the watermark of this epoch decides which results are final.
`output_watermark` makes the same promise for the output: rows of later epochs have event times after it.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from statebed.format import checkpoint_pb2 as pb
from statebed.format.stream_schema import Input, Output
from statebed.state import Combine, GlobalKeyedView, KeyedView, TableConfig, TimeKeyedView

MAIN = ""
"""Name of the main output, on which a stream continues."""
LATE = "late"
"""Name of the output of late rows; an operator with several inputs has `late_` plus the name of each input."""


@dataclass(frozen=True)
class Clock:
    """Times of one epoch in microseconds since 1970, equal for all subtasks; a watermark is None as long as it is
    unknown.
    """

    late_us: int | None
    """Watermark of the previous epoch: rows with event times at or before it are late."""
    watermark_us: int | None
    """Watermark of this epoch; never before `late_us`."""
    epoch_time_us: int
    """Processing time of the epoch."""


@dataclass(frozen=True)
class StepResult:
    """Outputs and counters of a step; `rows_in` is the number of admitted and late rows."""

    outputs: Mapping[str, pa.Table]
    """Rows by name of the output; a missing output has no rows."""
    rows_in: int = 0
    rows_late: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    """Other counters by name, such as retractions that matched no row."""
    next_timer_us: int | None = None
    """Earliest processing time at which a step is due even without rows; None if there is none."""
    matches: pb.JoinMatches | None = None
    """Statistics of a join by time: rows and event times of both inputs, and the number of pairs."""


@dataclass(frozen=True)
class Definition:
    """Definition of an operator as data, stored in records and compared at every start."""

    described: str
    """Parts of the definition as JSON."""
    free: frozenset[str] = frozenset()
    """Names of the parts that may change while the state is kept."""

    @staticmethod
    def of(free: Iterable[str] = (), /, **described: Any) -> "Definition":
        return Definition(json.dumps(described, sort_keys=True), frozenset(free))

    @property
    def fingerprint(self) -> str:
        """Digest that identifies the definition."""
        return hashlib.sha256(self.described.encode()).hexdigest()[:32]

    @property
    def tables_evolve(self) -> bool:
        """Whether the columns of the tables may change, which only holds where their meaning is up to the user."""
        return "states" in self.free

    def changes_from(self, stored: str) -> dict[str, tuple[Any, Any]]:
        """Return the parts that differ from a stored definition, each as (stored, current)."""
        before, after = json.loads(stored), json.loads(self.described)
        names = [*before, *(name for name in after if name not in before)]
        return {name: (before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)}


Elements = Callable[[str, pa.Table], Iterator[pa.Table]]
"""Reads the rows of a stored multiset table that belong to groups, passed with their keys; may yield others, too."""


class Tables(Protocol):
    """Tables of a subtask by name; implemented by TableManager."""

    def get_keyed(self, name: str) -> KeyedView: ...

    def get_time_keyed(self, name: str) -> TimeKeyedView: ...

    def get_global_keyed_state(self, name: str) -> GlobalKeyedView[Any, Any]: ...


class Operator(Protocol):
    """Stateful operator. Implementations are frozen, picklable dataclasses without mutable state or a dependency on
    Spark.
    """

    @property
    def operator_id(self) -> str: ...

    @property
    def inputs(self) -> tuple[Input, ...]: ...

    @property
    def outputs(self) -> Mapping[str, Output]:
        """Outputs by name, MAIN first."""

    @property
    def tables(self) -> Mapping[str, TableConfig]:
        """Configurations of the tables by name."""

    @property
    def combines(self) -> Mapping[str, Combine]:
        """Functions that combine rows with the same key and time, by name of a time-keyed table that allows it."""

    @property
    def definition(self) -> Definition:
        """Definition of the operator, without its name."""

    def step(self, tables: Tables, batches: Sequence[Iterable[pa.RecordBatch]], clock: Clock) -> StepResult:
        """Process the rows of one epoch, passed as batches for each input."""

    def output_watermark(self, watermark_us: int) -> int:
        """Return the watermark of the main output when the inputs are at `watermark_us`."""

    def is_due(self, before_us: int | None, after_us: int) -> bool:
        """Return whether advancing the watermark may change anything even without input rows."""

    def closing_watermark(self, event_time_us: int) -> int:
        """Return the watermark that closes everything that rows up to this event time have opened."""

    def latest_result(self, event_time_us: int) -> int:
        """Return the latest event time that a result of rows up to this event time can have."""


@runtime_checkable
class ResultsInState(Protocol):
    """Operator whose state may hold all its current results, so that a sink can be rebuilt from it."""

    def why_incomplete(self) -> str:
        """Return why the state lacks some current results; an empty string if it holds all of them."""

    def results_in_state(self, tables: Tables) -> Iterator[pa.Table]:
        """Yield the results in the state, as insertions of the main output."""


class OperatorBase:
    """Defaults of operators that emit results with the time of their input rows, and only when rows arrive."""

    @property
    def combines(self) -> Mapping[str, Combine]:
        """See `Operator.combines`."""
        return {}

    def output_watermark(self, watermark_us: int) -> int:
        """See `Operator.output_watermark`."""
        return watermark_us

    def is_due(self, before_us: int | None, after_us: int) -> bool:  # noqa: ARG002 - time alone changes no result
        """See `Operator.is_due`."""
        return False

    def closing_watermark(self, event_time_us: int) -> int:
        """See `Operator.closing_watermark`."""
        return event_time_us

    def latest_result(self, event_time_us: int) -> int:
        """See `Operator.latest_result`."""
        return event_time_us


@runtime_checkable
class UpgradableOperator(Protocol):
    """Operator whose tables had another layout in earlier versions."""

    @property
    def earlier_tables(self) -> Mapping[str, Sequence[TableConfig]]:
        """Configurations of the earlier tables by name, the newest version first."""

    def upgrade(self, name: str, earlier: KeyedView, tables: Tables, clock: Clock) -> None:
        """Write the rows of a table of an earlier version to the current tables."""


def earlier_tables(operator: Operator) -> Mapping[str, Sequence[TableConfig]]:
    """Return the tables of an operator as earlier versions stored them; empty if they never changed."""
    return operator.earlier_tables if isinstance(operator, UpgradableOperator) else {}


def upgrade_state(operator: Operator, manager: "UpgradableTables", clock: Clock) -> None:
    """Convert state of an operator that an earlier version stored, before its first step."""
    if isinstance(operator, UpgradableOperator):
        manager.upgrade(lambda name, view: operator.upgrade(name, view, manager, clock))


class UpgradableTables(Tables, Protocol):
    """Tables of a subtask, some of which may be stored in an earlier layout; implemented by TableManager."""

    def upgrade(self, move: Callable[[str, KeyedView], None]) -> None: ...
