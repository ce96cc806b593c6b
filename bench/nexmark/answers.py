"""Comparison of what both sides wrote: Spark's rows are among ours, which closes windows one batch earlier."""

from pathlib import Path

import duckdb

from bench.nexmark.questions import QUESTIONS

_WEIGHT = "_weight"
_START = "window_start"


def check(query: str, ours: Path, theirs: Path) -> int:
    """Return the number of Spark's rows; exit if one of them is not among ours."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        standing = connection.read_parquet(f"{ours}/out/*.parquet")
        names = ", ".join(name for name in standing.columns if name != _WEIGHT)
        if _WEIGHT in standing.columns:
            standing = standing.aggregate(f"{names}, sum({_WEIGHT}) AS weight", names).filter("weight > 0")
        written = connection.read_parquet(f"{theirs}/out/*/*.parquet", filename=True)
        if keys := ", ".join(QUESTIONS[query].keys):
            newest = written.aggregate(f"{keys}, max(filename) AS newest", keys).set_alias("newest")
            written = written.join(newest, keys).filter("filename = newest")
        if _START in standing.columns:
            # Spark's semi-joins give rows of windows that are still open.
            ((newest_start,),) = standing.max(_START).fetchall()
            written = written.filter(f"{_START} <= TIMESTAMPTZ '{newest_start}'")
        written = written.project(names)
        missing = written.except_(standing.project(names)).limit(3).fetchall()
        if missing:
            raise SystemExit(f"{query}: statebed did not give {missing}")
        return len(written)
