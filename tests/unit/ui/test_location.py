"""Reads of pages are bounded, made once, and right while the log grows, is cleaned up, or has an unfinished epoch."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from dashboard_jobs import RIDES, written
from large_job import write_file, write_large_job

from statebed import testing
from statebed.aggregates import functions as f
from statebed.errors import JobNotFoundError
from statebed.flow import Flow
from statebed.format import names
from statebed.storage import Listing, LocalStore, ObjectInfo, ScopedStore
from statebed.ui.location import JobReader, StateLocation
from statebed.ui.views import PLOTTED, epochs_view, job_view


class CountingStore(ScopedStore):
    """Counts the calls to a store."""

    def __init__(self, folder: Path, job: str) -> None:
        super().__init__(LocalStore(folder), job)
        self.asked: Counter[str] = Counter()

    def get(self, path: str) -> bytes:
        self.asked["get"] += 1
        return super().get(path)

    def head(self, path: str) -> ObjectInfo | None:
        self.asked["head"] += 1
        return super().head(path)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self.asked["list"] += 1
        return super().list(prefix)

    def list_level(self, prefix: str) -> Listing:
        self.asked["list_level"] += 1
        return super().list_level(prefix)


def counted(folder: Path, job: str = "rides") -> tuple[JobReader, CountingStore]:
    reader, store = StateLocation(str(folder)).job(job), CountingStore(folder, job)
    reader.log.store = store
    return reader, store


def test_a_growing_log_is_listed_once_and_then_asked_for_its_next_number(tmp_path: Path) -> None:
    with written(LocalStore(tmp_path)) as writer:
        writer.epochs(3)
        reader, store = counted(tmp_path)
        assert reader.head() == 4
        store.asked.clear()
        assert reader.head() == 4
        assert store.asked == {"head": 2}
        writer.epochs(2)
        assert reader.head() == 6
        assert store.asked["list_level"] == 0
        assert [point.epoch for point in reader.points(3)] == [4, 5, 6]


def test_nothing_is_read_twice(tmp_path: Path) -> None:
    with written(LocalStore(tmp_path)) as writer:
        writer.epochs(4)
        reader, store = counted(tmp_path)
        first = job_view(reader, now_us=0)
        store.asked.clear()
        assert job_view(reader, now_us=0) == first
        assert store.asked["get"] == 0
        assert store.asked["list_level"] == 0


def test_a_page_of_a_long_log_reads_the_newest_records_and_nothing_more(tmp_path: Path) -> None:
    write_large_job(write_file(tmp_path), epochs=600, files=80)
    reader, store = counted(tmp_path, "large")
    job_view(reader, now_us=0)
    assert PLOTTED <= store.asked["get"] <= PLOTTED + 20
    assert store.asked["list_level"] == 1
    assert store.asked["list"] == 0


def test_an_epoch_that_is_not_committed_is_not_shown(tmp_path: Path) -> None:
    with written(LocalStore(tmp_path)) as writer:
        writer.epochs(2)
    half = tmp_path / "rides" / names.data_file(4, "earned", "groups", 0, "0" * 32)
    half.parent.mkdir(parents=True)
    half.write_bytes(b"on its way")
    reader, _ = counted(tmp_path)
    assert reader.head() == 3
    assert [point.epoch for point in epochs_view(reader, before=None).points] == [3, 2, 1]


def test_epochs_that_are_collected_while_a_page_is_open_leave_it(tmp_path: Path) -> None:
    flow = Flow("rides")
    flow.source("rides", RIDES).key_by("driver", name="earned").agg(total=f.sum("fare"))
    with testing.run(flow, store=LocalStore(tmp_path), retained_epochs=3) as run:
        run.tick(epochs=3)
        reader, _ = counted(tmp_path)
        assert [point.epoch for point in epochs_view(reader, before=None).points] == [4, 3, 2, 1]
        run.tick(epochs=9)
        assert run._cluster.run.clean_up().records
        shown = epochs_view(reader, before=None).points
    assert [point.epoch for point in shown] == [13, 12, 11]
    assert all(point.is_readable for point in shown)


def test_a_record_that_was_removed_by_hand_is_missing(tmp_path: Path) -> None:
    with written(LocalStore(tmp_path)) as writer:
        writer.epochs(5)
    reader, _ = counted(tmp_path)
    reader.head()
    (tmp_path / "rides" / names.record(4)).unlink()
    found = {point.epoch: point.summary.status for point in epochs_view(reader, before=None).points}
    assert found[4] == "missing"
    assert found[5] == "complete"


def test_a_folder_without_records_is_no_job(tmp_path: Path) -> None:
    (tmp_path / "empty" / "checkpoints").mkdir(parents=True)
    location = StateLocation(str(tmp_path))
    with pytest.raises(JobNotFoundError):
        location.job("empty").head()
    with pytest.raises(JobNotFoundError):
        location.job("../outside")
