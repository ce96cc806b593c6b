"""Input files: the same for every side, two row groups each so that both cores read, in a fixed order of reading."""

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.spark.cases import ROW_US, Case, Files, Kind

START_US = 1_699_999_800_000_000
"""A border of windows, whichever of the lengths they have."""
_JITTER_US = 500_000
SMALL_BATCHES = 30
"""Java compiles what it runs while it runs: after six batches that still took a third of all processor time."""
FEW_KEYS = 10_000
_TURNS = 4
"""Sessions: two quarters of the keys are active at a time."""


def small_files(case: Case) -> Files:
    """Return files to warm up the machinery itself, before the state is filled."""
    if case.kind is Kind.PROCESS:
        rows = 2_000
    elif case.kind is Kind.JOIN or case.keys > FEW_KEYS:
        rows = 20_000
    else:
        rows = 10 * case.keys  # with fewer to a key the JVM would not add them up, as it does when it counts
    return Files(warm=0, warm_rows=0, measured=SMALL_BATCHES, rows=rows)


def write_inputs(case: Case, files: Files, folder: Path, *, seed: int = 7) -> None:
    """One folder for each source."""
    for number, source in enumerate(case.sources):
        place = folder / source
        place.mkdir(parents=True)
        draw = np.random.default_rng(seed + number)
        first = 0
        for index, rows in enumerate(files.all):
            count = rows // len(case.sources)
            path = place / f"{index:04d}.parquet"
            pq.write_table(_rows(case, draw, first, count), path, row_group_size=-(-count // 2), compression="snappy")
            os.utime(path, (1_700_000_000 + index, 1_700_000_000 + index))  # read in this order
            first += count


def newest_us(case: Case, folder: Path, *, count: int) -> int:
    """The newest event time in the first files that every source has: the least of the sources' newest."""
    newest = []
    for source in case.sources:
        paths = sorted((folder / source).glob("*.parquet"))[:count]
        times = pq.read_table(paths, columns=["ts"])["ts"].cast(pa.int64())
        newest.append(int(pc.max(times).as_py()))
    return min(newest)


def _rows(case: Case, draw: np.random.Generator, first: int, count: int) -> pa.Table:
    places = np.arange(first, first + count) * len(case.sources)
    times = START_US + places * ROW_US + draw.integers(0, _JITTER_US, count)
    keys = draw.integers(0, case.keys, count)
    if case.kind is Kind.SESSION:
        keys = _taking_turns(case, places, keys, draw)
    names = pa.array(keys)
    if case.kind is Kind.TEXT_AGGREGATE:
        names = pc.binary_join_element_wise("customer-", names.cast(pa.string()), "")
    return pa.table(
        {
            "k": names,
            "v": pa.array(draw.integers(0, 1000, count)),
            "ts": pa.array(times).cast(pa.timestamp("us", tz="UTC")),
        }
    )


def _taking_turns(
    case: Case, places: npt.NDArray[np.int64], keys: npt.NDArray[np.int64], draw: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Every key is active for two turns and silent for two."""
    turn = places // case.session_rows + draw.integers(0, 2, len(places))
    quarter = case.keys // _TURNS
    turned: npt.NDArray[np.int64] = (turn % _TURNS) * quarter + keys % quarter
    return turned
