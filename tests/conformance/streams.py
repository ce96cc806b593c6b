"""Random event streams, what happens between their epochs, and a short model of the watermark.

A stream is a list of epochs. Each has rows of one or two sources, in any order, and something that happens before it:
a crash, another number of subtasks, a merge of files, a move to disk; some epochs are lost before their commit and done
again. Rows have keys with nulls, NaN and -0.0, extreme values, and times that are out of order, equal, missing, before
1970 or in the year 20000. `play` lets all of it happen and then closes everything by a far watermark.
"""

import enum
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from random import Random
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from statebed import testing
from statebed.flow import Flow, Stream
from statebed.testing import TestRun

SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("d", pa.float64()),
        ("v", pa.int64()),
        ("big", pa.int64()),
        ("m", pa.decimal128(12, 2)),
        ("t", pa.string()),
        ("ts", pa.timestamp("us", "UTC")),
        ("x", pa.float64()),
    ]
)
"""`x` is last: it alone has values that an order of rows tells apart and SQL does not, 0.0 and -0.0."""
DELAY_US = 5
LEFT, RIGHT = "left", "right"
Row = tuple[Any, ...]
Picked = TypeVar("Picked")
SHORT_AND_LONG = pytest.mark.parametrize(
    "effort", [pytest.param(1, id="short"), pytest.param(20, id="long", marks=pytest.mark.long)]
)
"""Factor of the usual number of examples."""


class Action(enum.Enum):
    """Event before an epoch."""

    NOTHING = "nothing"
    CRASH = "crash"
    RESCALE = "rescale"
    COMPACT = "compact"
    SPILL = "spill"


@dataclass(frozen=True)
class Epoch:
    """Rows, what happens before them, and whether the epoch is lost once before its commit."""

    rows: Mapping[str, Sequence[Row]]
    action: Action = Action.NOTHING
    parallelism: int = 1
    """Number of subtasks after a rescale."""
    lost: bool = False


@dataclass(frozen=True)
class Script:
    """All of a stream."""

    seed: str
    epochs: tuple[Epoch, ...]
    parallelism: int
    memory: int

    def pick(self, options: Sequence[Picked]) -> Picked:
        """One of several, by chance."""
        return Random(f"{self.seed} {len(options)}").choice(options)


TIMES = [0, -(10**15), 568_971_820_800_000_000]
"""Times around 1970, in 1938, and in the year 20000."""
_VALUES: list[list[Any]] = [
    ["a", "b", "ü漢😀", "", None],
    [0.0, -0.0, math.nan, 1.5, None],
    [None, *range(-3, 10)],
    [None, 0, 2**53 + 1, 2**63 - 1, -(2**63)],
    [None, Decimal("0.10"), Decimal("-3.33"), Decimal("9999999999.99")],
    [None, "", "x", "x", "yy", "ß"],
    [*range(-30, 13), *range(-8, 13), None],
    [None, 0.0, -0.0, 0.1, -7.25, 1e-3, math.nan],
]
"""Value ranges of each column; times are added to that of the epoch."""
_ADVANCES = [0, 3, 7, 15, 15, 40, 40]
_FAR_US = 10**9


def for_each(
    check: "Callable[[Script], None]", case: object, *, examples: int, sources: Sequence[str] = (LEFT,), rows: int = 10
) -> None:
    """Try `count` streams, which differ between cases; each is identified by a seed.

    They are not shrunk when one fails: playing a stream takes too long for that.
    """
    phases = [Phase.explicit, Phase.reuse, Phase.generate]
    chosen = settings(max_examples=examples, suppress_health_check=list(HealthCheck), deadline=None, phases=phases)
    seeds = st.integers(0, 2**32 - 1).map(lambda seed: f"{case} {seed}")
    chosen(given(seeds)(lambda seed: check(script_of(seed, sources, rows))))()


def script_of(seed: str, sources: Sequence[str] = (LEFT,), most: int = 10, epochs: int = 6) -> Script:
    """The stream of a seed."""
    chance = Random(seed)
    now = chance.choice(TIMES)
    made: list[Epoch] = []
    earlier: dict[str, list[Row]] = {source: [] for source in sources}
    for _ in range(chance.randint(2, epochs)):
        now += _FAR_US if chance.random() < 0.05 else chance.choice(_ADVANCES)
        fed: dict[str, list[Row]] = {}
        for name in sources:
            drawn = [_row(chance, now) for _ in range(chance.randint(0, most))]
            fed[name] = drawn + earlier[name][: chance.randint(0, 2)]
            chance.shuffle(fed[name])
            earlier[name] = drawn
        action, number = chance.choice([Action.NOTHING, *Action]), chance.randint(1, 4)
        if chance.random() < 0.25:
            # Epochs that are lost have rows of one source.
            made += [Epoch({name: some}, action, number, lost=True) for name, some in fed.items()]
        else:
            made.append(Epoch(fed, action, number))
    return Script(seed, tuple(made), chance.randint(1, 3), chance.choice([256 << 10, 64 << 20]))


def _row(chance: Random, now: int) -> Row:
    return _at(tuple(chance.choice(some) for some in _VALUES), now)


def _at(row: Row, now: int) -> Row:
    return tuple(
        value if name != "ts" or value is None else now + value for name, value in zip(SCHEMA.names, row, strict=True)
    )


# ---- the watermark -------------------------------------------------------------------------------------------


def late_marks(epochs: Sequence[Epoch], sources: Sequence[str], delay_us: int) -> list[int | None]:
    """Return for each epoch, and one more, the time up to which rows are late in it: the watermark of the epoch before.

    The watermark of an epoch is the greatest event time of rows of earlier epochs minus the delay, and the least of
    several sources'; while one has none, there is none.
    """
    latest: dict[str, int] = {}
    mark: int | None = None
    found = []
    for epoch in epochs:
        found.append(mark)
        mark = min(latest.values()) - delay_us if len(latest) == len(sources) else None
        for source in sources:
            rows = epoch.rows.get(source, ())
            times = [row[SCHEMA.names.index("ts")] for row in rows]
            known = [time for time in (*times, latest.get(source)) if time is not None]
            if known:
                latest[source] = max(known)
    return [*found, mark]


Rule = Callable[[int | None, int], bool]
"""Whether a row with an event time is late by a watermark."""


@dataclass(frozen=True)
class Played:
    """A stream that has been played, and what its rows met."""

    run: TestRun
    script: Script
    sources: tuple[str, ...]
    delay_us: int

    def marks(self, sources: Sequence[str] = ()) -> list[int | None]:
        """Return for each epoch, and one more, the time up to which rows are late for operators that read these
        sources.
        """
        return late_marks(self.script.epochs, sources or self.sources, self.delay_us)

    def rows(self, source: str = LEFT, *, alone: bool = False) -> pa.Table:
        """All rows of a source with times as numbers, their epoch, and up to which time rows were late in it.

        `alone`: for an operator that reads this source and no other.
        """
        marks = self.marks([source] if alone else self.sources)
        found = [
            (*row, number, mark)
            for number, (epoch, mark) in enumerate(zip(self.script.epochs, marks, strict=False))
            for row in epoch.rows.get(source, ())
        ]
        kinds = [pa.int64() if pa.types.is_timestamp(field.type) else field.type for field in SCHEMA]
        names = [*SCHEMA.names, "epoch", "seen"]
        columns = zip(names, [*kinds, pa.int64(), pa.int64()], strict=True)
        return pa.table(
            {name: pa.array([row[place] for row in found], kind) for place, (name, kind) in enumerate(columns)}
        )


def source(flow: Flow, name: str = LEFT, *, delay_us: int = DELAY_US) -> Stream:
    """A source of the rows of streams."""
    return flow.source(name, SCHEMA, watermark=("ts", f"{delay_us} us"))


@contextmanager
def play(flow: Flow, script: Script, *, delay_us: int = DELAY_US) -> Iterator[Played]:
    """Let a stream go through a flow; in the end a far watermark closes everything."""
    with testing.run(flow, parallelism=script.parallelism, memory=script.memory) as t:
        for epoch in script.epochs:
            _act(t, epoch)
            fed = {name: as_table(rows) for name, rows in epoch.rows.items()}
            if epoch.lost:
                ((name, rows),) = fed.items()
                t.crash_in(name, rows)
            else:
                t.feed_all(fed)
        t.watermark(max(TIMES) + 10**11)
        yield Played(t, script, tuple(flow.graph.sources), delay_us)


def _act(t: TestRun, epoch: Epoch) -> None:
    match epoch.action:
        case Action.CRASH:
            t.crash()
        case Action.RESCALE:
            t.rescale(epoch.parallelism)
        case Action.COMPACT:
            t.compact()
        case Action.SPILL:
            t.spill()
        case Action.NOTHING:
            pass


def as_table(rows: Sequence[Row]) -> pa.Table:
    """Rows as a source takes them."""
    columns = [
        pa.array([row[place] for row in rows], pa.int64()).cast(field.type)
        if pa.types.is_timestamp(field.type)
        else pa.array([row[place] for row in rows], field.type)
        for place, field in enumerate(SCHEMA)
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)
