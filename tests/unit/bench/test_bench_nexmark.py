"""The Nexmark benchmark: every query has an answer of Spark's or a reason, and a missing row ends it."""

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.nexmark.answers import check
from bench.nexmark.questions import NAMES, QUESTIONS, WHY_NOT
from examples.nexmark import QUERIES


def write(folder: Path, file: str, **columns: Any) -> None:
    path = folder / "out" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def test_every_query_has_an_answer_of_sparks_or_a_reason() -> None:
    assert set(NAMES) <= set(QUERIES)
    assert set(QUESTIONS) | set(WHY_NOT) == set(NAMES)
    assert not set(QUESTIONS) & set(WHY_NOT)


def test_rows_of_sparks_are_found_among_ours(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    write(ours, "000001-0.parquet", name=["a", "b"], id=[1, 2])
    write(theirs, "000000/part.parquet", id=[2], name=["b"])
    assert check("q3", ours, theirs) == 1
    write(theirs, "000001/part.parquet", id=[3], name=["b"])
    with pytest.raises(SystemExit, match="q3: statebed did not give"):
        check("q3", ours, theirs)


def test_of_updated_results_the_newest_row_of_each_key_counts(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    write(ours, "000001-0.parquet", auction=[7], day=["d"], n=[1], _weight=[1])
    write(ours, "000002-0.parquet", auction=[7, 7], day=["d", "d"], n=[1, 3], _weight=[-1, 1])
    write(theirs, "000000/part.parquet", auction=[7], day=["d"], n=[1])
    write(theirs, "000001/part.parquet", auction=[7], day=["d"], n=[3])
    assert check("q17", ours, theirs) == 1
    write(theirs, "000002/part.parquet", auction=[7], day=["d"], n=[4])
    with pytest.raises(SystemExit, match="q17: statebed did not give"):
        check("q17", ours, theirs)


def test_rows_of_windows_that_are_still_open_here_are_left_out(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    first, second = (dt.datetime(2026, 1, 1, 0, minute, tzinfo=dt.UTC) for minute in (0, 1))
    write(ours, "000001-0.parquet", id=[1], window_start=[first])
    write(theirs, "000000/part.parquet", id=[1, 2], window_start=[first, second])
    assert check("q8", ours, theirs) == 1
    write(theirs, "000001/part.parquet", id=[3], window_start=[first])
    with pytest.raises(SystemExit, match="q8: statebed did not give"):
        check("q8", ours, theirs)
