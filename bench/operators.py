"""The operators: rows per second through each, in memory and with a tenth of it, against DuckDB and pandas.

Ours takes the rows in batches, as they would come, keeps its state and makes each batch durable in a local store. The
others see all rows at once, and keep nothing: DuckDB's answer over all rows is the practical ceiling. All give the same
rows, which is checked.
"""

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa

from bench.operator_cases import CASES, OperatorCase, events
from bench.report import Report, Result, faster, is_chosen, smaller
from statebed import testing
from statebed.state import CompactionMode
from statebed.storage import LocalStore

BATCH_ROWS = 100_000
KEYS = 1_000_000
PLENTY = 8 << 30
FAR_US = 10**15
_MIN_BUDGET = 8 << 20
_WARM_UP_ROWS = 1 << 13


def run(report: Report, *, quick: bool, only: str = "") -> int | None:
    """Measure every case whose name contains `only`, or one of its parts between '|'; an exit status if none does."""
    cases = [case for case in CASES if is_chosen(case.name, only)]
    if not cases:
        print("no such case; there are:", *(case.name for case in CASES), sep="\n  ", file=sys.stderr)
        return 2
    rows = 1_000_000 if quick else 5_000_000
    for case in cases:
        measure(case, report, rows=rows)
    return None


def measure(case: OperatorCase, report: Report, *, rows: int) -> None:
    """One operator, all ways."""
    tables = {name: events(rows, KEYS, seed) for seed, name in enumerate(case.sources)}
    total = rows * len(tables)
    _ours(case, {name: table.slice(0, _WARM_UP_ROWS) for name, table in tables.items()}, PLENTY, None)
    answer, duck = _duckdb(case, tables)
    frames = {name: table.to_pandas() for name, table in tables.items()}
    start = time.perf_counter()
    rows = len(case.frame(frames))
    pandas_seconds = time.perf_counter() - start
    if rows != answer.num_rows:
        raise SystemExit(f"{case.name}: pandas gives {rows} rows, DuckDB {answer.num_rows}")
    del frames
    ours, held = _ours(case, tables, PLENTY, answer)
    seconds, duck_seconds = ours.clock, duck.clock
    for baseline, theirs in (("duckdb, all at once", duck_seconds), ("pandas, all at once", pandas_seconds)):
        report.add(faster(case.name, baseline, "in memory", ours=total / seconds, theirs=total / theirs, unit="rows/s"))
    spent = (1e9 * spent.processor / total for spent in (ours, duck))
    report.add(_processor_time(case.name, *spent))
    budget = max(_MIN_BUDGET, held // 10)
    bounded = _ours(case, tables, budget, answer)[0].clock
    name = f"a tenth: {budget >> 20} MiB"
    report.add(
        faster(case.name, "duckdb, all at once", name, ours=total / bounded, theirs=total / duck_seconds, unit="rows/s")
    )
    report.add(faster(case.name, "ours in memory", name, ours=total / bounded, theirs=total / seconds, unit="rows/s"))


@dataclass(frozen=True)
class Spent:
    """Seconds on the clock, and of the processor in all threads, which other programs on the machine disturb less."""

    clock: float
    processor: float


@contextmanager
def _timed(spent: list[Spent]) -> Iterator[None]:
    clock, processor = time.perf_counter(), time.process_time()
    yield
    spent.append(Spent(time.perf_counter() - clock, time.process_time() - processor))


def _processor_time(case: str, ours: float, theirs: float) -> Result:
    return smaller(case, "duckdb, all at once", "processor time", ours=ours, theirs=theirs, unit="ms/Mrow")


def _duckdb(case: OperatorCase, tables: dict[str, pa.Table]) -> tuple[pa.Table, Spent]:
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        connection.execute("create macro minute(moment) as time_bucket(interval 1 minute, moment)")
        for name, table in tables.items():
            connection.register(f"{name}_rows", table)
            connection.execute(f"create table {name} as from {name}_rows")
        spent: list[Spent] = []
        with _timed(spent):
            answer = connection.sql(case.sql).to_arrow_table()
        return answer, spent[0]


def _ours(case: OperatorCase, tables: dict[str, pa.Table], budget: int, answer: pa.Table | None) -> tuple[Spent, int]:
    """Time spent, and the most memory that the state was charged. Without an answer, nothing is compared."""
    held = 0
    with (
        tempfile.TemporaryDirectory(prefix="statebed-bench-") as folder,
        testing.run(
            case.flow(), memory=budget, store=LocalStore(Path(folder)), compaction=CompactionMode.BACKGROUND
        ) as t,
    ):
        spent: list[Spent] = []
        with _timed(spent):
            for first in range(0, max(table.num_rows for table in tables.values()), BATCH_ROWS):
                t.feed_all({name: table.slice(first, BATCH_ROWS) for name, table in tables.items()})
                held = max(held, t.memory_used)
            t.watermark(FAR_US)
        if answer is not None:
            _check(case, t.table("result"), answer)
    return spent[0], held


def _check(case: OperatorCase, ours: pa.Table, answer: pa.Table) -> None:
    """The same rows, as often."""
    if ours.num_rows != answer.num_rows:
        raise SystemExit(f"{case.name}: ours gives {ours.num_rows} rows, DuckDB {answer.num_rows}")
    answer = answer.rename_columns(ours.column_names)
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        connection.register("ours", ours)
        connection.register("answer", answer)
        (different,) = connection.execute("select count(*) from (from ours except all from answer)").fetchone() or (-1,)
    if different:
        raise SystemExit(f"{case.name}: {different} rows of ours are not DuckDB's")
