"""A stream that a job reads more than once: each reads it to its end, and a restart continues from there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import statebed as sb

pytestmark = pytest.mark.filterwarnings("ignore::statebed.errors.UnboundedStateWarning")


def counted(stream: Any, name: str, given: dict[str, int]) -> None:
    """Count the rows of a stream in an operator of its own."""

    def keep(df: Any, _epoch: int) -> None:
        for row in df.where("_weight > 0").collect():
            given[name] = row["n"]

    stream.key_by("1 as one", name=name).agg(n=sb.count()).write(keep, name=f"of_{name}")


def two_frames(job: sb.Job, rides: Any, given: dict[str, int]) -> None:
    stream = job.source(rides.frame(), name="rides")
    counted(stream, "every", given)
    counted(stream.where("driver = 'ann'"), "some", given)


def a_third(job: sb.Job, rides: Any, given: dict[str, int]) -> None:
    stream = job.source(rides.frame(), name="rides")
    counted(stream.where("driver = 'ann'"), "some", given)
    counted(stream.select("driver"), "later", given)
    counted(stream, "every", given)


def itself(job: sb.Job, rides: Any, given: dict[str, int]) -> None:
    stream = job.source(rides.frame(), name="rides")
    counted(stream.where("cents % 2 = 0").union(stream.where("cents % 2 <> 0")), "every", given)


def by_function(job: sb.Job, rides: Any, given: dict[str, int]) -> None:
    counted(job.source(rides.frame(), name="rides").transform(lambda df: df.union(df)), "twice", given)


def two_sources(job: sb.Job, rides: Any, given: dict[str, int]) -> None:
    df = rides.frame()
    counted(job.source(df, name="left"), "every", given)
    counted(job.source(df, name="right"), "again", given)


Make = Callable[[sb.Job, Any, dict[str, int]], None]


@pytest.mark.parametrize(
    ("makes", "expected"),
    [
        ((two_frames, a_third), {"every": 3, "some": None, "later": 1}),
        ((itself, itself), {"every": 3}),
        ((by_function, by_function), {"twice": 6}),
        ((two_sources, two_sources), {"every": 3, "again": 3}),
    ],
    ids=["two frames and a third", "a union with itself", "a function", "two sources"],
)
def test_p1_p2_a_stream_that_is_read_twice_goes_on_after_a_restart(
    rides: Any, tmp_path: Path, makes: tuple[Make, Make], expected: dict[str, int | None]
) -> None:
    given: dict[str, int] = {}
    rows = 120
    for number, make in enumerate(makes):
        rides.add_files(2 - number, rows=rows)
        job = sb.Job("rides", state=tmp_path / "state", parallelism=2, spark=rides.spark)
        make(job, rides, given)
        assert job.start(available_now=True).await_termination(180)
    some = rides.spark.read.parquet(str(rides.input)).where("driver = 'ann'").count()
    assert some
    assert given == {name: some if files is None else files * rows for name, files in expected.items()}


def test_p2_a_watermark_that_a_function_sets_is_that_of_the_source(rides: Any, tmp_path: Path) -> None:
    rides.add_files(4)
    seen = []
    for number in range(2):
        job = sb.Job("rides", state=tmp_path / f"{number}", parallelism=2, spark=rides.spark)
        if number:
            stream = job.source(rides.frame(), name="rides")
            stream = stream.transform(lambda df: df.withWatermark("ts", "3 minutes"))
        else:
            stream = job.source(rides.frame(), name="rides", watermark=("ts", "3 minutes"))
        stream.group_by("driver", sb.tumbling("1 minute"), name="minutes").agg(n=sb.count()).write(
            lambda *_: None, name="nothing"
        )
        query = job.start(available_now=True)
        assert query.await_termination(180)
        seen.append([(one.rows_in, one.rows_late, one.rows_out, one.watermark_us) for one in query.recent_progress])
    assert seen[0] == seen[1]
    assert sum(late for _, late, _, _ in seen[0]) == 0
