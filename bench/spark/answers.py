# ruff: noqa: S608 - all that is put into queries is ours
"""Is the answer right? Every side's output files against DuckDB's answer over the same input, row by row."""

from pathlib import Path

import duckdb

from bench.spark.cases import Case, Files, Kind, Side
from bench.spark.inputs import newest_us

_DELAY_US = 1_000_000
_SESSIONS = """
    select k, min(ts) as window_start, max(ts) + to_microseconds({gap}) as window_end, count(*) as n, sum(v) as total
    from (select *, sum(begins) over (partition by k order by ts) as number from
          (select *, coalesce((epoch_us(ts) - epoch_us(lag(ts) over (partition by k order by ts)) > {gap})::int, 0)
           as begins from a))
    group by k, number
"""


def check(case: Case, files: Files, inputs: Path, folder: Path, side: Side) -> None:
    """Stop when the side's rows are not the ones."""
    with duckdb.connect() as db:
        db.execute("set timezone = 'UTC'")
        for source in case.sources:
            db.execute(f"create view {source} as from read_parquet('{inputs / source}/*.parquet')")
        db.execute(f"create table expected as {_expected(case, _closed_us(case, files, inputs, side))}")
        db.execute(f"create table found as {_found(case, folder, side)}")
        missing = _count(db, "from expected except all from found")
        surplus = _count(db, "from found except all from expected")
        rows = _count(db, "from expected")
    if missing or surplus or not rows:
        raise SystemExit(
            f"{case.name}: of {rows} rows {side.value} lacks {missing}, and has {surplus} that it should not"
        )


def _closed_us(case: Case, files: Files, inputs: Path, side: Side) -> int:
    """Return the time up to which windows are closed: in Spark by the batches before the last, in ours by all.

    Spark's watermarks are whole milliseconds.
    """
    if side is Side.OURS:
        return newest_us(case, inputs, count=len(files.all)) - _DELAY_US
    return newest_us(case, inputs, count=len(files.all) - 1) // 1_000 * 1_000 - _DELAY_US


def _expected(case: Case, closed_us: int) -> str:
    closed = f"where epoch_us(window_end) <= {closed_us}"
    if case.kind in {Kind.TUMBLING, Kind.SLIDING}:
        step = case.window_us if case.kind is Kind.TUMBLING else case.slide_us
        start = f"make_timestamp((epoch_us(ts) // {step} - back) * {step})"
        length = f"to_microseconds({case.window_us})"
        return _typed_windows(
            f"select * from (select k, {start} as window_start, {start} + {length} as window_end, count(*) as n, "
            f"sum(v) as total from a, range({case.window_us // step}) as steps(back) group by all) {closed}"
        )
    if case.kind is Kind.DEDUPLICATION:
        return "select distinct k from a"
    if case.kind is Kind.SESSION:
        return _typed_windows(f"select * from ({_SESSIONS.format(gap=case.gap_us)}) {closed}")
    if case.kind is Kind.JOIN:
        apart = f"epoch_us(a.ts) - epoch_us(b.ts) between 0 and {case.interval_us}"
        return f"select a.k, a.v, b.v as v_right from a join b on a.k = b.k and {apart}"
    return "select k, count(*) as n, sum(v)::bigint as total from a group by k"


def _found(case: Case, folder: Path, side: Side) -> str:
    ours = side is Side.OURS
    rows = f"read_parquet('{folder}/run/out/{'*.parquet' if ours else '*/*.parquet'}', filename = true)"
    if case.kind in {Kind.TUMBLING, Kind.SLIDING, Kind.SESSION}:
        return _typed_windows(f"select * from {rows}")
    if case.kind is Kind.JOIN:
        return f"select k, v, v_right from {rows}"
    if case.kind is Kind.DEDUPLICATION:
        return f"select k from {rows}"
    if case.kind in {Kind.AGGREGATE, Kind.TEXT_AGGREGATE} and ours:
        # A changelog: what was added less what was taken back.
        return f"select k, n, total from {rows} group by k, n, total having sum(_weight) > 0"
    # Results so far, batch by batch; the name of a file, or of its folder, begins with the number of the batch.
    return f"select k, arg_max(n, filename) as n, arg_max(total, filename) as total from {rows} group by k"


def _typed_windows(query: str) -> str:
    return (
        "select k, epoch_us(window_start) as window_start, epoch_us(window_end) as window_end, n, "
        f"total::bigint as total from ({query})"
    )


def _count(db: duckdb.DuckDBPyConnection, query: str) -> int:
    (count,) = db.execute(f"select count(*) from ({query})").fetchone() or (-1,)
    return int(count)
