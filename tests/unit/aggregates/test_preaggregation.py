"""Rows that were added up before they came leave the same state as the rows themselves."""

import datetime as dt
import functools
import operator as operators
from typing import Any

import datasketches
import numpy as np
import pyarrow as pa
import pytest
from effort import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

import statebed as sb
from statebed.aggregates.accumulators import registers_of
from statebed.aggregates.parts import Factor, Part, Reduce, Word
from statebed.aggregates.preaggregation import LATEST, ROW_COUNT, aggregate_parts, parts_of
from statebed.arrays.key_hash import hash_columns, normalise_key
from statebed.errors import InputError, SumOverflowError
from statebed.flow.graph import OperatorNode
from statebed.format.schema import KEY_HASH, TIME, TIMESTAMP
from statebed.operators import Clock
from statebed.operators.aggregation import Aggregation
from statebed.operators.updating.aggregate import UpdatingAggregate
from statebed.operators.windows.aggregate import WindowAggregate
from statebed.state import CompactionMode, ManagerOptions, TableManager, TaskInfo
from statebed.storage import MemoryStore

PANE = 10
AGGREGATES = {
    "n": sb.count(),
    "there": sb.count("big"),
    "ok": sb.count(where="small > 0"),
    "total": sb.sum("big"),
    "short": sb.sum("small"),
    "middle": sb.mean("big"),
    "least": sb.min("real"),
    "most": sb.max("word"),
    "every": sb.bool_and("flag"),
    "some": sb.bool_or("flag"),
    "ands": sb.bit_and("small"),
    "xors": sb.bit_xor("big"),
    "price": sb.sum("price"),
    "prices": sb.mean("price", where="small > 0"),
    "early": sb.first("word"),
    "late": sb.last("real"),
    "cheap": sb.min_by("word", "price"),
    "dear": sb.max_by("big", "real"),
    "end": sb.max_by("real", "word"),
    "spread": sb.var_samp("big"),
    "narrow": sb.stddev_pop("small"),
    "slope": sb.regr_slope("big", "small", where="flag"),
    "likeness": sb.corr("small", "big"),
    "words": sb.approx_count_distinct("word", precision=4),
    "reals": sb.approx_count_distinct("real", where="flag"),
}
SCHEMA = "k string, big bigint, small int, real double, word string, flag boolean, price decimal(12, 2), ts timestamp"
ROW = st.fixed_dictionaries(
    {
        "k": st.sampled_from(["a", "b", None]),
        "big": st.none() | st.sampled_from([0, -1, 2**63 - 1, -(2**63), 2**32, 7]) | st.integers(-9, 9),
        "small": st.none() | st.integers(-(2**31), 2**31 - 1),
        "real": st.none() | st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("-inf")]),
        "word": st.none() | st.text("ab", max_size=2),
        "flag": st.none() | st.booleans(),
        "price": st.none() | st.decimals("-9999999999.99", "9999999999.99", places=2),
        "ts": st.none() | st.integers(-30, 60),
    }
)


def operator_of(kind: str) -> OperatorNode:
    flow = sb.Flow("rows")
    rows = flow.source("rows", SCHEMA, watermark=("ts", "0s"))
    if kind == "windows":
        rows.group_by("k", sb.tumbling(dt.timedelta(microseconds=PANE)), name="op").agg(**AGGREGATES)
    else:
        rows.key_by("k", name="op").agg(ttl=None if kind == "running" else dt.timedelta(microseconds=25), **AGGREGATES)
    node = flow.graph.nodes[-1]
    assert isinstance(node, OperatorNode)
    return node


def added_up(operator: Aggregation, fed: pa.Table, late_us: int | None) -> pa.Table:
    """Return the result of a JVM: groups by key hash, keys and pane, and their parts, computed with pyarrow."""
    parts = parts_of(operator.partials)
    assert parts is not None
    assert operator.preaggregated is not None
    groups: dict[Any, list[dict[str, Any]]] = {}
    for row in fed.to_pylist():
        time = None if row[TIME] is None else _micros(row[TIME])
        pane = None if time is None or not isinstance(operator, WindowAggregate) else time - time % PANE
        side = None
        if isinstance(operator, UpdatingAggregate) and operator.needs_time:
            until = operator.late_until(late_us)
            side = time is None or (until is not None and time <= until)
        groups.setdefault((row[KEY_HASH], row["k"], pane, side), []).append({**row, TIME: time})
    made = []
    for (hashed, key, pane, _), rows in groups.items():
        times = [row[TIME] for row in rows if row[TIME] is not None]
        latest = max(times) if times else None
        made.append(
            {
                KEY_HASH: hashed,
                TIME: pane if isinstance(operator, WindowAggregate) else latest,
                "k": key,
                ROW_COUNT: len(rows),
                LATEST: latest,
                **{part.name: _reduced(part, rows) for part in parts},
            }
        )
    return pa.Table.from_pylist(made, schema=operator.preaggregated.schema)


def _reduced(part: Part, rows: list[dict[str, Any]]) -> Any:  # noqa: PLR0911 - one for each way
    if not part.factors:
        return len(rows)
    needed = [*part.required, *(factor.column for factor in (part.factors if part.by is None else (part.by,)))]
    counted = [row for row in rows if all(row[name] is not None for name in needed)]
    if part.reduce is Reduce.COUNT:
        return len(counted)
    if not counted:
        return None
    if part.by is not None:
        return _value_by(part, part.by, counted)
    if part.reduce is Reduce.SKETCH:
        return _sketch([row[part.factors[0].column] for row in counted], part.precision)
    values = [functools.reduce(operators.mul, (_word(one, row) for one in part.factors)) for row in counted]
    if part.reduce in {Reduce.LOW_SUM, Reduce.HIGH_SUM}:
        return sum((v & 0xFFFFFFFF) if part.reduce is Reduce.LOW_SUM else v >> 32 for v in values)
    if part.reduce in {Reduce.BIT_AND, Reduce.BIT_OR, Reduce.BIT_XOR}:
        ufunc = {Reduce.BIT_AND: np.bitwise_and, Reduce.BIT_OR: np.bitwise_or, Reduce.BIT_XOR: np.bitwise_xor}
        return int(ufunc[part.reduce].reduce(np.array(values, dtype=np.int64)))
    if part.reduce is Reduce.SUM:
        return sum(values)
    return sorted(values, key=_place)[0 if part.reduce is Reduce.MIN else -1]


def _sketch(values: list[Any], precision: int) -> Any:
    """Return the sketch of the library that Spark's JVM also uses, reduced to the registers."""
    sketch = datasketches.hll_sketch(precision, datasketches.tgt_hll_type.HLL_8)
    for number in hash_columns([normalise_key(pa.array(values))]).view(np.int64).tolist():
        sketch.update(number)
    return registers_of(pa.array([sketch.serialize_updatable()], pa.binary()))[0].as_py()


def _value_by(part: Part, by: Factor, rows: list[dict[str, Any]]) -> Any:
    value = part.factors[0].column
    places = [_place(row[by.column]) for row in rows]
    best = min(places) if part.reduce is Reduce.MIN_BY else max(places)
    tied = [row[value] for row, place in zip(rows, places, strict=True) if place == best]
    return min((one for one in tied if one is not None), key=_place, default=None)


def _place(value: Any) -> Any:
    """Return the sort key in Spark's order: NaN is the largest, and text is ordered by its bytes."""
    if isinstance(value, str):
        return value.encode()
    return (value != value, 0.0 if value != value else value)  # noqa: PLR0124 - NaN


def _word(factor: Factor, row: dict[str, Any]) -> Any:
    value = row[factor.column]
    if factor.word is Word.WHOLE:
        return value
    high = round(float(value) / 2**32)
    return high if factor.word is Word.HIGH else int(float(value)) - high * 2**32


def _micros(moment: dt.datetime) -> int:
    return (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)


def table(rows: list[dict[str, Any]]) -> pa.Table:
    schema = pa.schema(
        [
            ("k", pa.string()),
            ("big", pa.int64()),
            ("small", pa.int32()),
            ("real", pa.float64()),
            ("word", pa.string()),
            ("flag", pa.bool_()),
            ("price", pa.decimal128(12, 2)),
            ("ts", TIMESTAMP),
        ]
    )
    made = pa.Table.from_pylist(rows, schema=schema)
    return made.append_column(TIME, made["ts"])


NOTHING = {"k": "a", "big": None, "small": None, "real": None, "word": None, "flag": None, "price": None}


@settings(max_examples=examples(30), deadline=None)
@example(kind="forgetting", epochs=[[{**NOTHING, "ts": None}, {**NOTHING, "ts": 3}]])
@given(
    kind=st.sampled_from(["windows", "running", "forgetting"]), epochs=st.lists(st.lists(ROW, max_size=8), max_size=3)
)
def test_p6_groups_leave_the_same_results_and_state_as_their_rows(
    kind: str, epochs: list[list[dict[str, Any]]]
) -> None:
    node = operator_of(kind)
    operator = node.operator
    assert isinstance(operator, Aggregation)
    stores = [MemoryStore(), MemoryStore()]
    managers = [
        TableManager(
            TaskInfo("job", "op", 0, 1),
            operator.tables,
            store,
            options=ManagerOptions(compaction=CompactionMode.OFF),
            combines=operator.combines,
        )
        for store in stores
    ]
    marks = [None, 10, 30, 55]
    for number, rows in enumerate(epochs):
        fed = node.feeds[0].apply(table(rows))
        clock = Clock(marks[number], marks[number + 1], number)
        groups = added_up(operator, fed, clock.late_us)
        try:
            one = operator.step(managers[0], [fed.to_batches()], clock)
        except SumOverflowError:
            with pytest.raises(SumOverflowError):
                operator.step(managers[1], [[], groups.to_batches()], clock)
            break
        two = operator.step(managers[1], [[], groups.to_batches()], clock)
        assert str(one.outputs[""].to_pylist()) == str(two.outputs[""].to_pylist())  # as text, because of NaN
        for known in ("rows_in", "rows_late", "counts"):
            assert getattr(one, known) == getattr(two, known)
        stored = [m.checkpoint(number + 1, 0, clock.watermark_us, time=number).result(30) for m in managers]
        assert stored[0].reference == stored[1].reference
    for manager in managers:
        manager.close()


@pytest.mark.parametrize(
    ("time", "pane"),
    [
        (2**63 - 7, 2**63 - 8),
        (-(2**63) + 1, None),  # what does not fit
        (-(2**63) + 1, 2**63 - 7),  # what wrapped around
        (-(2**63) + 10, -(2**63) + 8),
        (7, None),
        (7, 10),
    ],
)
@pytest.mark.parametrize("late_us", [None, 10])
def test_a_group_outside_of_the_range_of_windows_is_refused_as_its_rows_are(
    time: int, pane: int | None, late_us: int | None
) -> None:
    node = operator_of("windows")
    operator = node.operator
    assert isinstance(operator, Aggregation)
    rows = node.feeds[0].apply(table([{**NOTHING, "ts": 7}]))
    groups = added_up(operator, rows, late_us)
    for name, value in ((TIME, pane), (LATEST, time)):
        place = groups.schema.get_field_index(name)
        groups = groups.set_column(place, groups.schema.field(place), pa.array([value], pa.int64()).cast(TIMESTAMP))
    far = rows.set_column(rows.schema.get_field_index(TIME), TIME, pa.array([time], pa.int64()).cast(TIMESTAMP))
    manager = TableManager(TaskInfo("job", "op", 0, 1), operator.tables, MemoryStore(), combines=operator.combines)
    given = [[[], groups.to_batches()], *([] if time == 7 else [[far.to_batches()]])]
    for batches in given:
        with pytest.raises(InputError, match="far from 1970"):
            operator.step(manager, batches, Clock(late_us, 20, 1))
    manager.close()


@pytest.mark.parametrize("aggregate", [sb.sum("real"), sb.collect_list("word"), sb.count_distinct("word")], ids=str)
def test_what_is_not_made_of_plain_parts_is_not_added_up_elsewhere(aggregate: Any) -> None:
    flow = sb.Flow("rows")
    rows = flow.source("rows", SCHEMA, watermark=("ts", "0s"))
    rows.key_by("k", name="op").agg(n=sb.count(), x=aggregate)
    operator = flow.graph.operators["op"]
    assert isinstance(operator, Aggregation)
    assert operator.preaggregated is None


LONG_DECIMAL = pa.decimal128(29, 2)


def test_sums_of_decimals_of_more_than_28_digits_are_not_added_up_elsewhere() -> None:
    for aggregate in (sb.sum("x"), sb.mean("x")):
        assert aggregate_parts(0, aggregate.bind("a", input_types=(LONG_DECIMAL,))) is None
