"""Check of the demo's result: DuckDB recomputes its windows over the same event files as one batch.

The result of the job is in two places: closed windows are in the sink, open ones are still in the state. Both are plain
Parquet, so DuckDB reads them without statebed; only the list of live files comes from the newest record.
"""

from dataclasses import dataclass
from typing import Any

from statebed.checkpoint.objects import fetch_subtask
from statebed.demo.job import WINDOW_US, DemoFolder
from statebed.format import checkpoint_pb2 as pb

_EXPECTED = f"""
    SELECT auction, epoch_us("dateTime") // {WINDOW_US} * {WINDOW_US} AS window_start,
           count(*)::HUGEINT AS bids, sum(price)::HUGEINT AS volume
    FROM read_parquet(?) GROUP BY ALL
"""  # noqa: S608 - the window's length is ours
_CLOSED = """
    SELECT auction, epoch_us(window_start) AS window_start, bids::HUGEINT AS bids, volume::HUGEINT AS volume
    FROM read_parquet(?)
"""
_OPEN = f"""
    SELECT auction, epoch_us(_bin) AS window_start, sum(bids)::HUGEINT AS bids, sum(volume)::HUGEINT AS volume
    FROM read_parquet(?) WHERE epoch_us(_bin) + {WINDOW_US} > ? GROUP BY ALL
"""  # noqa: S608 - the window's length is ours
_NOTHING = "SELECT 0::BIGINT auction, 0::BIGINT window_start, 0::HUGEINT bids, 0::HUGEINT volume WHERE false"
_BEGINNING_US = -(1 << 62)


@dataclass(frozen=True)
class Totals:
    """Totals of a set of (auction, window) rows."""

    rows: int
    windows: int
    bids: int
    volume: int


@dataclass(frozen=True)
class Comparison:
    """Both results, and the number of rows that are in only one of them."""

    expected: Totals
    closed: Totals
    still_open: Totals
    missing: int
    """Number of recomputed rows that the job lacks."""
    unexpected: int
    """Number of rows of the job that the recomputation lacks, including duplicates."""

    @property
    def equal(self) -> bool:
        return self.missing == 0 and self.unexpected == 0


def compare(folder: DemoFolder) -> Comparison:
    """Recompute everything and compare row by row."""
    import duckdb  # noqa: PLC0415 - an extra

    events = [str(path) for path in folder.events(events_per_file=1).existing()]
    results = [str(path) for path in sorted(folder.results.rglob("*.parquet"))]
    state, watermark_us = _live_state(folder)
    with duckdb.connect() as db:
        _materialise(db, "expected", _EXPECTED, events)
        _materialise(db, "closed", _CLOSED, results)
        _materialise(db, "still_open", _OPEN, state, watermark_us)
        db.execute("CREATE VIEW answer AS FROM closed UNION ALL FROM still_open")
        return Comparison(
            expected=_totals(db, "expected"),
            closed=_totals(db, "closed"),
            still_open=_totals(db, "still_open"),
            missing=_count(db, "FROM expected EXCEPT ALL FROM answer"),
            unexpected=_count(db, "FROM answer EXCEPT ALL FROM expected"),
        )


def _live_state(folder: DemoFolder) -> tuple[list[str], int]:
    """Return the data files of the newest record, and the time up to which windows are closed."""
    log = folder.log()
    head = log.head() or pb.CheckpointMetadata()
    files = {
        file.path
        for operator in head.operators
        for reference in operator.subtasks
        for table in fetch_subtask(log.store, reference).tables.values()
        for subtask in table.subtasks.values()
        for file in subtask.files
    }
    marks = [i.watermark_us for o in head.operators for i in o.inputs if i.HasField("watermark_us")]
    return [f"{log.store.url}/{path}" for path in sorted(files)], min(marks, default=_BEGINNING_US)


def _materialise(db: Any, name: str, query: str, files: list[str], *parameters: int) -> None:
    if files:
        db.execute(f"CREATE TABLE {name} AS {query}", [files, *parameters])
    else:
        db.execute(f"CREATE TABLE {name} AS {_NOTHING}")


def _totals(db: Any, name: str) -> Totals:
    query = (
        f"SELECT count(*), count(DISTINCT window_start), coalesce(sum(bids), 0), coalesce(sum(volume), 0) FROM {name}"  # noqa: S608 - ours
    )
    return Totals(*(int(value) for value in db.execute(query).fetchone()))


def _count(db: Any, query: str) -> int:
    return int(db.execute(f"SELECT count(*) FROM ({query})").fetchone()[0])  # noqa: S608 - ours
