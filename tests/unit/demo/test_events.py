"""Files of events: whole or absent, in order, each slice after the last."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from statebed.demo.events import EventFiles
from statebed.demo.job import DemoFolder
from statebed.demo.nexmark import Nexmark
from statebed.errors import DemoError, InputError


def files(folder: Path, *, events_per_file: int = 500) -> EventFiles:
    return EventFiles(folder / "events", Nexmark(seed=5), events_per_file)


def test_slices_follow_each_other_without_gap_or_overlap(tmp_path: Path) -> None:
    list(files(tmp_path).append(2))
    list(files(tmp_path, events_per_file=250).append(2))
    written = pa.concat_tables([pq.read_table(path) for path in files(tmp_path).existing()])
    assert written.equals(Nexmark(seed=5).bids(first=0, count=1500))


def test_the_order_of_files_is_the_order_of_their_times(tmp_path: Path) -> None:
    list(files(tmp_path).append(3))
    list(files(tmp_path).append(2))
    times = [path.stat().st_mtime for path in files(tmp_path).existing()]
    assert len(times) == 5
    assert times == sorted(set(times))


def test_a_file_that_a_crash_left_half_written_is_passed_over(tmp_path: Path) -> None:
    list(files(tmp_path).append(1))
    (tmp_path / "events" / ".bids-000000000500-000000500.parquet.tmp").write_bytes(b"PAR1 half")
    assert len(files(tmp_path).existing()) == 1
    list(files(tmp_path).append(1))
    assert [path.name for path in sorted((tmp_path / "events").iterdir())] == [
        "bids-000000000000-000000500.parquet",
        "bids-000000000500-000000500.parquet",
    ]


def test_events_that_cannot_be_written_are_an_error_with_the_folder(tmp_path: Path) -> None:
    (tmp_path / "events").write_text("a file where the folder should be")
    with pytest.raises(DemoError, match="cannot write") as raised:
        list(files(tmp_path).append(1))
    assert raised.value.where == str(tmp_path / "events")


def test_the_demo_wants_a_folder_and_shows_no_secret_of_a_url(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="got a URL: s3://") as raised:
        DemoFolder.at("s3://user:password@bucket/demo?token=abc")
    assert not any(secret in str(raised.value) for secret in ("user", "password", "abc"))
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="this is a file"):
        DemoFolder.at(str(tmp_path / "file"))
