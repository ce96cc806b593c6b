"""State of every operator: it is released, it is in the engine alone, and results do not depend on how it lies."""

import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conformance.every_operator import KINDS, OPERATORS
from conformance.streams import LEFT, RIGHT, SCHEMA, SHORT_AND_LONG, Epoch, Script, for_each, play, source

from statebed import testing
from statebed.checkpoint import ParquetBackend
from statebed.flow import Flow
from statebed.storage import MemoryStore

WINDOWS_PER_EPOCH, EPOCHS, ROWS_PER_WINDOW = 64, 16, 5
SPAN_US = 10 * WINDOWS_PER_EPOCH
OPEN_US = 2 * SPAN_US + 80
"""Time span that is not final: the watermark of an epoch comes from the rows before it; operators add less than 80 us.
"""


def flow_of(step: Callable[..., Any]) -> Flow:
    flow = Flow("conformance")
    step(source(flow, LEFT), source(flow, RIGHT))
    return flow


def rows_of(epoch: int) -> pa.Table:
    """Rows of many windows of 10 us, each with keys of its own."""
    count = WINDOWS_PER_EPOCH * ROWS_PER_WINDOW
    times = epoch * SPAN_US + np.arange(count) * 10 // ROWS_PER_WINDOW
    numbers = pa.array(np.arange(count) % 7)
    columns = {
        "k": pa.array([f"key {time // 10}" for time in times.tolist()]),
        "d": pa.nulls(count, pa.float64()),
        "v": numbers,
        "big": numbers,
        "m": numbers.cast(pa.decimal128(21, 2)).cast(pa.decimal128(12, 2)),
        "t": numbers.cast(pa.string()),
        "ts": pa.array(times).cast(SCHEMA.field("ts").type),
        "x": numbers.cast(pa.float64()),
    }
    return pa.Table.from_pydict(columns, schema=SCHEMA)


def live_bytes(store: MemoryStore, t: testing.TestRun) -> int:
    """Return the size of the data files that the last epoch refers to."""
    metadata = ParquetBackend(store).load_operator_metadata("conformance", "out", t.epoch)
    assert metadata is not None
    subtasks = [one for table in metadata.tables.values() for one in table.subtasks.values()]
    return sum(file.size for one in subtasks for file in one.files)


@pytest.mark.parametrize(
    "operator", [name if name in KINDS else pytest.param(name, marks=pytest.mark.long) for name in OPERATORS]
)
def test_a_thousand_windows_hold_the_state_of_the_open_ones_alone(
    operator: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store = MemoryStore()
    rows: list[int] = []
    sizes: list[int] = []
    with testing.run(flow_of(OPERATORS[operator]), store=store) as t:
        for epoch in range(EPOCHS):
            t.feed_all({LEFT: rows_of(epoch), RIGHT: rows_of(epoch)})
            if epoch % 2:
                rows.append(t.state_rows("out"))
            sizes.append(live_bytes(store, t))
        t.watermark(10**9)
        t.tick(epochs=3)
        final = live_bytes(store, t)
        assert t.state_rows("out") == 0
    shown = f"rows {min(rows):4} to {max(rows):4}, bytes at most {max(sizes):6}, in the end {final}"
    with capsys.disabled():
        sys.stdout.write(f"\n  {operator:22} {shown} ")
    fed_per_us = 2 * ROWS_PER_WINDOW / 10
    tables = len(flow_of(OPERATORS[operator]).graph.operators["out"].tables)
    assert 0 < max(rows) <= OPEN_US * fed_per_us * tables
    assert max(sizes[len(sizes) // 2 :]) <= 1.5 * max(sizes[: len(sizes) // 2]), "files grow"
    assert final <= max(sizes) / 4


# ---- nothing outside the engine ------------------------------------------------------------------------------


def held(found: object, path: str, seen: set[int]) -> Iterator[str]:
    """Return the places where an object, or what it refers to, holds rows: arrays, tables, batches."""
    if id(found) in seen or isinstance(found, str | bytes | int | float | type | pa.DataType | pa.Field | pa.Schema):
        return
    seen.add(id(found))
    if isinstance(found, pa.Table | pa.RecordBatch | pa.Array | pa.ChunkedArray | pa.Buffer | np.ndarray):
        yield f"{path}: {type(found).__name__}"
    elif isinstance(found, Mapping):
        for key, value in found.items():
            yield from held(value, f"{path}[{key!r}]", seen)
    elif isinstance(found, tuple | list | set | frozenset):
        for number, value in enumerate(found):
            yield from held(value, f"{path}[{number}]", seen)
    else:
        for name, value in getattr(found, "__dict__", {}).items():
            yield from held(value, f"{path}.{name}", seen)
        for name in getattr(type(found), "__slots__", ()):
            yield from held(getattr(found, name, None), f"{path}.{name}", seen)


@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_holds_its_definition_and_no_rows(operator: str) -> None:
    flow = flow_of(OPERATORS[operator])
    (one,) = flow.graph.operators.values()
    with testing.run(flow) as t:
        sizes = []
        for epoch in range(3):
            t.feed_all({LEFT: rows_of(epoch), RIGHT: rows_of(epoch)})
            sizes.append(len(pickle.dumps(one)))
        t.watermark(10**9)
        sizes.append(len(pickle.dumps(one)))
    # Schemas and the like are found once, at the first steps.
    assert sizes[1] == sizes[2] == sizes[3]
    assert list(held(one, operator, set())) == []


# ---- however it lies -----------------------------------------------------------------------------------------


@SHORT_AND_LONG
@pytest.mark.parametrize("operator", OPERATORS)
def test_p6_every_epoch_gives_the_same_rows_whatever_happens_and_in_whatever_order_rows_come(
    operator: str, effort: int
) -> None:
    flow = flow_of(OPERATORS[operator])

    def check(script: Script) -> None:
        calm = Script(
            script.seed,
            tuple(Epoch({name: rows[::-1] for name, rows in epoch.rows.items()}) for epoch in script.epochs),
            parallelism=1,
            memory=64 << 20,
        )
        given = []
        for one in (script, calm):
            with play(flow, one) as played:
                sides = [side for side in flow.graph.operators["out"].outputs if side]
                given.append([as_text(played.run.changes("out", side=side)) for side in ("", *sides)])
        assert given[0] == given[1]

    for_each(check, operator, examples=effort, sources=(LEFT, RIGHT), rows=7)


def as_text(rows: pa.Table) -> list[str]:
    """Rows as sorted text, in which NaN equals itself and 0.0 is not -0.0."""
    columns = [column.cast(pa.int64()) if pa.types.is_temporal(column.type) else column for column in rows.columns]
    return sorted(map(repr, zip(*(column.to_pylist() for column in columns), strict=True)))
