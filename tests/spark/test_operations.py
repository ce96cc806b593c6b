"""A job that changes between its starts: operators that come, go and change, sources that come, clones."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

import statebed as sb
from statebed.checkpoint.clone import clone_job
from statebed.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore::statebed.errors.UnboundedStateWarning")


class Job:
    """Counts per driver, and what else a test asks for."""

    def __init__(self, rides: Any, name: str = "rides") -> None:
        self.given: dict[str, list[dict[str, Any]]] = {}
        self.job = sb.Job(name, state=rides.state, spark=rides.spark, parallelism=2)
        self.rides = self.job.source(rides.frame(), name="rides", watermark=("ts", "1 minute"))

    def counts(self, *, name: str = "counts", ttl: str | None = "1 day", **aggregates: Any) -> "Job":
        counted = self.rides.key_by("driver", name=name).agg(ttl=ttl, n=sb.count(), **aggregates)
        counted.write(self.keep(name), name=name)
        return self

    def windows(self, minutes: int = 1) -> "Job":
        windows = self.rides.group_by("driver", sb.tumbling(f"{minutes} minutes"), name="windows").agg(n=sb.count())
        windows.write(self.keep("windows"), name="windows")
        return self

    def keep(self, name: str) -> Any:
        def kept(df: DataFrame, epoch: int) -> None:
            self.given.setdefault(name, []).extend(row.asDict() for row in df.collect())

        return kept

    def run(self, **arguments: Any) -> "Job":
        assert self.job.start(available_now=True, **arguments).await_termination(180)
        return self

    def final(self, name: str = "counts") -> dict[Any, int]:
        """Return the final counts of the changelog of this start."""
        return {row["driver"]: row["n"] for row in self.given.get(name, []) if row["_weight"] > 0}


def total(rides: Any) -> int:
    return int(rides.files * 120)


def test_an_operator_that_is_new_begins_with_no_state_and_the_others_go_on(rides: Any) -> None:
    rides.add_files(2)
    Job(rides).counts().run()
    rides.add_files(2)
    changed = Job(rides).counts().windows().run()
    assert sum(changed.final().values()) == total(rides)
    assert 0 < sum(row["n"] for row in changed.given["windows"]) <= 240


def test_an_operator_that_is_gone_is_refused_until_it_is_said_what_becomes_of_its_state(rides: Any) -> None:
    rides.add_files(1)
    Job(rides).counts().counts(name="again").run()
    with pytest.raises(InputError, match=r"no longer has: again; the job has counts"):
        Job(rides).counts().run()
    with pytest.raises(InputError, match=r"again; the job has counts, renamed, of which renamed have no state yet"):
        Job(rides).counts().counts(name="renamed").run()
    rides.add_files(1)
    Job(rides).counts().run(removed="keep")
    kept = {entry.operator_id: entry.retired for entry in rides.record().operators}
    assert kept == {"counts": False, "again": True}
    rides.add_files(1)
    Job(rides).counts().run()
    returned = Job(rides).counts().counts(name="again").run()
    rides.add_files(1)
    returned = Job(rides).counts().counts(name="again").run()
    # It saw the first file and the last: what came while it was retired is not in its state.
    assert sum(returned.final("again").values()) == 240
    assert sum(returned.final().values()) == total(rides)
    Job(rides).counts().run(removed="drop")
    assert [entry.operator_id for entry in rides.record().operators] == ["counts", "again"]  # no epoch, no record
    rides.add_files(1)
    Job(rides).counts().run(removed="drop")
    assert [entry.operator_id for entry in rides.record().operators] == ["counts"]


def test_an_operator_that_changed_goes_on_where_its_state_means_the_same_else_it_is_refused(rides: Any) -> None:
    rides.add_files(1)
    Job(rides).counts().windows().run()
    head = rides.record().epoch
    with pytest.raises(InputError, match=r"window was \[.*60000000.*is \[.*120000000"):
        Job(rides).counts().windows(minutes=2).run()
    with pytest.raises(InputError, match="aggregates was"):
        Job(rides).counts(total=sb.sum("cents")).windows().run()
    assert rides.record().epoch == head
    rides.add_files(1)
    longer = Job(rides).counts(ttl="2 days").windows().run()
    assert sum(longer.final().values()) == total(rides)


def test_a_clone_goes_on_from_where_the_other_job_was_with_rows_that_neither_has_seen(rides: Any) -> None:
    rides.add_files(2)
    Job(rides).counts().run()
    clone_job(str(rides.state), "rides", "copy")
    rides.add_files(1)
    copy = Job(rides, name="copy").counts().run()
    assert sum(copy.final().values()) == total(rides)
    first = Job(rides).counts().run()
    assert first.final() == copy.final()
    assert Path(rides.state / "copy").is_dir()


def test_a_source_that_comes_new_or_changes_its_place_is_found_by_its_name(rides: Any, tmp_path: Path) -> None:
    more = type(rides)(rides.spark, tmp_path / "more")
    rides.add_files(2)
    Job(rides).counts().run()

    def both(*, swapped: bool) -> dict[str, int]:
        given: dict[str, int] = {}
        job = sb.Job("rides", state=rides.state, spark=rides.spark, parallelism=2)
        frames = [("rides", rides.frame()), ("more", more.frame())]
        streams = {
            name: job.source(frame, name=name, watermark=("ts", "1 minute"))
            for name, frame in (frames[::-1] if swapped else frames)
        }
        united = streams["more"].union(streams["rides"]) if swapped else streams["rides"].union(streams["more"])
        counted = united.key_by("driver", name="counts").agg(ttl="1 day", n=sb.count())

        def keep(df: DataFrame, epoch: int) -> None:
            given.update({row["driver"]: row["n"] for row in df.collect() if row["_weight"] > 0})

        counted.write(keep, name="counts")
        assert job.start(available_now=True).await_termination(180)
        return given

    more.add_files(2)
    rides.add_files(1)
    assert sum(both(swapped=False).values()) == (rides.files + more.files) * 120
    more.add_files(1)
    rides.add_files(1)
    assert sum(both(swapped=True).values()) == (rides.files + more.files) * 120
    assert {one.source for one in rides.record().sources} == {"rides", "more"}
