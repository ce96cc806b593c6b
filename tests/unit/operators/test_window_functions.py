"""Functions over rows of closed windows, and the first n of them, against DuckDB's answer over the admitted rows."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import duck
import numpy as np
import pyarrow as pa
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.operators.operator_epochs import Epochs, plain, rows_of

from statebed.arrays.row_numbers import Numbering
from statebed.arrays.sort_order import order_by
from statebed.errors import InputError, SumOverflowError
from statebed.format.stream_schema import Changes, Input
from statebed.operators.changelog import UNKNOWN_RETRACTIONS
from statebed.operators.operator import LATE, MAIN
from statebed.operators.window_definition import Window, cumulative, sliding, tumbling
from statebed.operators.windows.buffered_rows import KEPT
from statebed.operators.windows.function_calls import WindowCall, WindowFunction
from statebed.operators.windows.functions import WindowFunctions
from statebed.operators.windows.top_n import WindowTopN
from statebed.state import MemoryController, Tiers

COLUMNS = pa.schema([("k", pa.string()), ("price", pa.int64()), ("x", pa.float64()), ("name", pa.string())])
BIDS = Input("bids", COLUMNS, ("k",))
ALL_BIDS = Input("bids", COLUMNS, ())
CHANGES = Input("bids", COLUMNS, ("k",), Changes.CHANGELOG)
ORDER = order_by("price desc", "name nulls last")
WINDOWS = [
    tumbling("20 us", "5 us"),
    sliding("30 us", "20 us"),
    sliding("30 us", "10 us"),
    cumulative("40 us", "10 us"),
]
CALLS = {
    "row_number": WindowCall(WindowFunction.ROW_NUMBER),
    "rank": WindowCall(WindowFunction.RANK),
    "dense_rank": WindowCall(WindowFunction.DENSE_RANK),
    "percent_rank": WindowCall(WindowFunction.PERCENT_RANK),
    "cume_dist": WindowCall(WindowFunction.CUME_DIST),
    "ntile": WindowCall(WindowFunction.NTILE, number=3),
    "lag": WindowCall(WindowFunction.LAG, "name"),
    "lead": WindowCall(WindowFunction.LEAD, "price", number=2, default=-1),
    "first": WindowCall(WindowFunction.FIRST_VALUE, "name"),
    "last": WindowCall(WindowFunction.LAST_VALUE, "price"),
    "rows_so_far": WindowCall(WindowFunction.RUNNING_COUNT),
    "count": WindowCall(WindowFunction.RUNNING_COUNT, "price"),
    "sum": WindowCall(WindowFunction.RUNNING_SUM, "price"),
    "sum_x": WindowCall(WindowFunction.RUNNING_SUM, "x"),
    "least": WindowCall(WindowFunction.RUNNING_MIN, "name"),
    "most": WindowCall(WindowFunction.RUNNING_MAX, "x"),
    "avg": WindowCall(WindowFunction.RUNNING_AVG, "price"),
}
QUERY = """
select k, window_start, window_end, price, x, name,
    row_number() over rows_, rank() over peers, dense_rank() over peers, percent_rank() over peers,
    cume_dist() over peers, ntile(3) over rows_, lag(name) over rows_, lead(price, 2, -1) over rows_,
    first_value(name) over whole, last_value(price) over whole, count(*) over running, count(price) over running,
    sum(price) over running, sum(x) over running, min(name) over running, max(x) over running, avg(price) over running
from rows
window peers as (partition by {key} window_end order by price desc nulls last, name nulls last),
    rows_ as (partition by {key} window_end order by price desc nulls last, name nulls last, k nulls last,
        x nulls last),
    whole as (rows_ rows between unbounded preceding and unbounded following),
    running as (rows_ rows between unbounded preceding and current row)
"""

ROWS = st.tuples(
    st.sampled_from(["a", "b", None]),
    st.sampled_from([1, 2, -3, None]),
    st.sampled_from([0.5, 2.0, float("inf"), None]),
    st.sampled_from(["x", "y", "", None]),
)
TIMES = st.one_of(st.none(), st.integers(-90, 90))
EPOCHS = st.lists(
    st.tuples(
        st.lists(st.tuples(ROWS, TIMES, st.sampled_from([1, 1, 2, -1])), max_size=12),
        st.integers(0, 30),
        st.sampled_from([None, None, 1, 3]),
    ),
    min_size=1,
    max_size=5,
)
END = 1_000


def run(operator: Any, epochs: Any, *, seed: int = 0, tiers: Tiers | None = None) -> Any:
    """Outputs epoch by epoch, and of a last one that closes everything."""
    watermark = -80
    with Epochs(operator, chance=random.Random(seed), tiers=tiers) as stream:
        for events, step, restart in [*epochs, ([], END, None)]:
            if restart is not None:
                stream.restart(restart)
            watermark += step
            rows = [{**dict(zip(COLUMNS.names, row, strict=True)), "_weight": weight} for row, _, weight in events]
            given_rows = rows_of(operator.input, rows, [time for _, time, _ in events])
            outputs = stream.feed(given_rows, watermark_us=watermark)
            assert sum(one.rows_in for one in stream.results) == len(events)
            yield outputs, stream
        assert stream.state_rows(KEPT) == 0, "what is closed is released"


def admitted_rows(epochs: Any, window: Window) -> tuple[Counter[Any], int]:
    """Each admitted row with each window that was open for it, and how many rows were late."""
    found: Counter[Any] = Counter()
    late_count, late, watermark = 0, None, -80
    for events, step, _ in epochs:
        watermark += step
        for row, time, weight in events:
            open_windows = []
            if time is not None:
                held = window.windows_of(window.panes_of(np.array([time], dtype=np.int64)))
                assert all(
                    start <= time < end for start, end in zip(held.starts.tolist(), held.ends.tolist(), strict=True)
                )
                open_windows = [
                    edges
                    for edges in zip(held.starts.tolist(), held.ends.tolist(), strict=True)
                    if late is None or edges[1] > late
                ]
            late_count += not open_windows
            for start, end in open_windows:
                found[(*row, start, end)] += weight
        late = watermark
    return found, late_count


def duckdb_answer(rows: Counter[Any], query: str) -> list[str]:
    listed = [row for row, weight in rows.items() for _ in range(weight)]
    names = [*COLUMNS.names, "window_start", "window_end"]
    types = [*COLUMNS.types, pa.int64(), pa.int64()]
    table = pa.table({name: pa.array([row[at] for row in listed], types[at]) for at, name in enumerate(names)})
    with duck.cursor() as connection:
        connection.register("rows", table)
        return sorted(repr(tuple(row)) for row in connection.execute(query).fetchall())


def shown(outputs: list[dict[str, pa.Table]]) -> list[str]:
    found = []
    for one in outputs:
        rows = one[MAIN]
        for edge in ("window_start", "window_end"):
            rows = rows.set_column(rows.schema.get_field_index(edge), edge, rows[edge].cast(pa.int64()))
        for row in plain(rows):
            assert row.pop("_time") == row["window_end"] - 1
            leading = [row.pop(name) for name in ("k", "window_start", "window_end", "price", "x", "name")]
            found.append(repr((*leading, *row.values())))
    return sorted(found)


@pytest.mark.parametrize("window", WINDOWS, ids=Window.described)
@settings(max_examples=examples(8), deadline=None)
@given(epochs=EPOCHS, kind=st.sampled_from([BIDS, ALL_BIDS, CHANGES]))
def test_p6_every_function_is_what_duckdb_says_of_the_admitted_rows(window: Window, epochs: Any, kind: Input) -> None:
    if kind is not CHANGES:
        epochs = [([(row, time, 1) for row, time, _ in events], step, again) for events, step, again in epochs]
    operator = WindowFunctions("functions", kind, window, ORDER, tuple(CALLS.items()))
    results = [(outputs, stream.results) for outputs, stream in run(operator, epochs)]
    rows, late = admitted_rows(epochs, window)
    assert sum(outputs[LATE].num_rows for outputs, _ in results) == late
    unknown = -sum(min(weight, 0) for weight in rows.values())
    assert sum(one.counts[UNKNOWN_RETRACTIONS] for _, some in results for one in some) == unknown
    query = QUERY.format(key="k," if kind.keys else "")
    assert shown([outputs for outputs, _ in results]) == duckdb_answer(+rows, query)


@pytest.mark.parametrize("numbering", list(Numbering))
@settings(max_examples=examples(10), deadline=None)
@given(epochs=EPOCHS, window=st.sampled_from(WINDOWS), kind=st.sampled_from([BIDS, ALL_BIDS, CHANGES]))
def test_p6_the_first_rows_of_a_window_are_those_duckdb_finds(
    numbering: Numbering, epochs: Any, window: Window, kind: Input
) -> None:
    if kind is not CHANGES:
        epochs = [([(row, time, 1) for row, time, _ in events], step, again) for events, step, again in epochs]
    operator = WindowTopN("top", kind, window, 2, ORDER, numbering, number="number")
    found = shown([outputs for outputs, _ in run(operator, epochs)])
    over = "partition by {key} window_end order by price desc nulls last, name nulls last".format(
        key="k," if kind.keys else ""
    )
    if numbering is Numbering.ROW_NUMBER:
        over += ", k nulls last, x nulls last"
    query = f"""select k, window_start, window_end, price, x, name, {numbering.value}() over ({over}) as number
        from rows qualify number <= 2"""
    rows, _ = admitted_rows(epochs, window)
    assert found == duckdb_answer(+rows, query)


@settings(max_examples=examples(8), deadline=None)
@given(epochs=EPOCHS, kind=st.sampled_from([BIDS, CHANGES]))
def test_p6_closed_windows_and_state_have_the_same_bytes_in_any_order_of_arrival(epochs: Any, kind: Input) -> None:
    operator = WindowTopN("top", kind, sliding("30 us", "10 us"), 2, ORDER)
    first, second = (
        [repr((plain(out[MAIN]), plain(out[LATE]), live.record)) for out, live in run(operator, epochs, seed=one)]
        for one in (1, 2)
    )
    assert first == second


def test_the_first_n_of_each_pane_are_all_that_is_kept() -> None:
    chance = random.Random(1)
    operator = WindowTopN("top", BIDS, tumbling("100 us"), 3, order_by("price desc"))
    with Epochs(operator) as stream:
        for _ in range(12):
            rows = [{"k": chance.choice("abcd"), "price": chance.randrange(1000)} for _ in range(200)]
            stream.feed(rows_of(BIDS, rows, [chance.randrange(100) for _ in rows]), watermark_us=0)
        stream.managers[0].compact().result(timeout=60)
        stream.feed(rows_of(BIDS, [], []), watermark_us=0)
        assert stream.state_rows(KEPT) == 4 * 3


def test_a_memory_budget_smaller_than_the_state_changes_no_window(tmp_path: Path) -> None:
    chance = random.Random(5)
    epochs = [
        (
            [((chance.choice("abc"), chance.randrange(99), None, "n" * 50), chance.randrange(-70, 90), 1)
             for _ in range(3000)],
            0,
            None,
        )
        for _ in range(4)
    ]  # fmt: skip
    operator = WindowFunctions(
        "rows", BIDS, tumbling("20 us"), ORDER, (("number", WindowCall(WindowFunction.ROW_NUMBER)),)
    )
    tiers = Tiers(MemoryController(1 << 18), folder=tmp_path)
    try:
        small = shown([outputs for outputs, _ in run(operator, epochs, tiers=tiers)])
    finally:
        tiers.close()
    assert len(small) > 10_000
    assert small == shown([outputs for outputs, _ in run(operator, epochs)])


def test_a_run_over_many_windows_keeps_the_rows_of_open_ones_only() -> None:
    operator = WindowFunctions(
        "rows", BIDS, tumbling("10 us"), ORDER, (("number", WindowCall(WindowFunction.ROW_NUMBER)),)
    )
    with Epochs(operator) as stream:
        for start in range(0, 2000, 20):
            rows = [{"k": "a", "price": one} for one in range(20)]
            stream.feed(rows_of(BIDS, rows, [start + one for one in range(20)]), watermark_us=start + 15)
            assert stream.state_rows(KEPT) == 10


def test_a_running_sum_that_leaves_its_type_is_an_error_and_near_it_exact() -> None:
    operator = WindowFunctions(
        "rows", BIDS, tumbling("10 us"), ORDER, (("sum", WindowCall(WindowFunction.RUNNING_SUM, "price")),)
    )
    near = [{"k": "a", "price": price} for price in (2**62, 2**62 - 1, -(2**63))]
    with Epochs(operator) as stream:
        out = stream.feed(rows_of(BIDS, near, [1] * 3), watermark_us=10)[MAIN]
        assert out["sum"].to_pylist() == [2**62, 2**63 - 1, -1]
        with pytest.raises(SumOverflowError):
            stream.feed(rows_of(BIDS, [{"k": "a", "price": 2**62}] * 2, [11] * 2), watermark_us=20)


def test_definitions_that_make_no_sense_are_refused() -> None:
    def functions(window: Window = WINDOWS[0], **calls: WindowCall) -> WindowFunctions:
        return WindowFunctions("rows", BIDS, window, ORDER, tuple(calls.items()))

    with pytest.raises(InputError, match="no function"):
        functions()
    with pytest.raises(InputError, match="twice"):
        functions(price=WindowCall(WindowFunction.RANK))
    with pytest.raises(InputError, match="does not exist"):
        functions(one=WindowCall(WindowFunction.LAG, "nothing"))
    with pytest.raises(InputError, match="of type string"):
        functions(one=WindowCall(WindowFunction.RUNNING_SUM, "name"))
    with pytest.raises(InputError, match="default"):
        functions(one=WindowCall(WindowFunction.LEAD, "price", default="text"))
    with pytest.raises(InputError, match="buckets"):
        WindowCall(WindowFunction.NTILE, number=0)
    with pytest.raises(InputError, match="look back"):
        WindowCall(WindowFunction.LAG, "price", number=-1)
    edge = Input("bids", pa.schema([("k", pa.string()), ("window_end", pa.int64())]), ("k",))
    with pytest.raises(InputError, match="twice"):
        WindowTopN("top", edge, WINDOWS[0], 1, order_by("k"))
