"""A source of files whose folder has moved: the next start says so, and counts no row twice."""

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import statebed as sb
from statebed.errors import StatebedError


@pytest.mark.parametrize("files", [1, 3])
def test_a_source_that_moved_is_refused_with_both_paths(rides: Any, tmp_path: Path, files: int) -> None:
    rides.add_files(files)
    schema = rides.frame().schema

    def counted() -> int:
        with sqlite3.connect(tmp_path / "out.db") as connection:
            return int(connection.execute("select sum(n) from counts").fetchone()[0])

    def run(folder: Path) -> None:
        job = sb.Job("rides", state=rides.state, spark=rides.spark, parallelism=2)
        frame = rides.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))
        counts = (
            job.source(frame, name="rides")
            .key_by("driver", name="counts")
            .agg(n=sb.count(), ttl="1 day", ttl_clock="epoch_time")
        )
        counts.write("sqlite", path=str(tmp_path / "out.db"), table="counts", key="driver")
        assert job.start(available_now=True).await_termination(180)

    run(rides.input)
    before = counted()
    moved = tmp_path / "moved"
    shutil.move(rides.input, moved)
    with pytest.raises(StatebedError, match="path of a source has changed") as caught:
        run(moved)
    assert str(moved) in caught.value.what
    assert str(rides.input) in caught.value.what
    assert counted() == before
