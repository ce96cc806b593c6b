"""A source that a job no longer has: refused until told, and then its position is forgotten."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

import statebed as sb
from statebed.errors import InputError


def test_a_source_that_goes_is_refused_until_told_and_is_read_anew_when_it_returns(rides: Any, tmp_path: Path) -> None:
    worlds = {"rides": rides, "more": type(rides)(rides.spark, tmp_path / "more")}

    def run(*names: str, **arguments: Any) -> int:
        job = sb.Job("rides", state=rides.state, spark=rides.spark, parallelism=2)
        first, *others = [
            job.source(worlds[name].frame(), name=name, watermark=("ts", "1 minute"), idle_after="1 minute")
            for name in names
        ]
        counted = first.union(*others).key_by("driver", name="counts").agg(ttl="1 day", n=sb.count())
        counted.write("sqlite", path=str(tmp_path / "counts.db"), table="counts", key="driver")
        assert job.start(available_now=True, **arguments).await_termination(180)
        with sqlite3.connect(tmp_path / "counts.db") as connection:
            return int(connection.execute("select sum(n) from counts").fetchone()[0])

    for world in worlds.values():
        world.add_files(1)
    assert run("rides", "more") == 240
    for world in worlds.values():
        world.add_files(1)
    with pytest.raises(InputError, match="fed by the sources rides, more, but the job has rides"):
        run("rides")
    assert run("rides", removed="keep") == 360
    assert run("more", "rides") == 360 + 240
