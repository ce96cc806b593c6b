"""State of aggregates, read as finished results: the column `mean` holds the mean."""

import datetime as dt
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import statebed as sb
from statebed.errors import InputError
from statebed.format.segment_reader import SegmentReader
from statebed.inspect.tables import read_plan
from statebed.storage import get_storage_provider
from statebed.testing import TestRun

COLUMNS = "driver string, city string, fare double, cents bigint, ts timestamp"
MEAN = {"mean": sb.mean("fare"), "n": sb.count()}


def row(driver: str, fare: float, at: str, city: str = "Ulm") -> dict[str, Any]:
    ts = dt.datetime.fromisoformat(f"2026-01-01T{at}+00:00")
    return {"driver": driver, "city": city, "fare": fare, "cents": int(fare * 100), "ts": ts}


@contextmanager
def running(folder: Path, build: Any, parallelism: int = 2) -> Iterator[TestRun]:
    flow = sb.Flow("rides")
    build(flow.source("rides", COLUMNS, watermark=("ts", "0s")))
    with sb.testing.run(flow, store=get_storage_provider(folder), parallelism=parallelism) as run:
        yield run


def results(folder: Path, **asked: Any) -> list[dict[str, Any]]:
    found = sb.read_state(folder, job="rides", operator="op", results=True, **asked).to_arrow().to_pylist()
    return sorted(found, key=repr)


def at(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(f"2026-01-01T{text}+00:00")


def test_the_mean_of_an_updating_aggregate_is_the_mean(tmp_path: Path) -> None:
    with running(tmp_path, lambda rides: rides.key_by("driver", name="op").agg(**MEAN)) as run:
        run.feed("rides", [row("a", 1.0, "12:00"), row("a", 2.0, "12:01"), row("b", 5.0, "12:00")])
        run.feed("rides", [row("a", 6.0, "12:02")])
    assert results(tmp_path) == [{"driver": "a", "mean": 3.0, "n": 3}, {"driver": "b", "mean": 5.0, "n": 1}]
    assert "_latest" in sb.read_state(tmp_path, job="rides", operator="op").columns


def test_an_aggregate_without_keys_has_one_result(tmp_path: Path) -> None:
    with running(tmp_path, lambda rides: rides.key_by(name="op").agg(**MEAN)) as run:
        run.feed("rides", [row("a", 1.0, "12:00"), row("b", 5.0, "12:00")])
    table = sb.read_state(tmp_path, job="rides", operator="op", results=True)
    assert (table.columns, table.key_columns) == (["mean", "n"], [])
    assert table.to_arrow().to_pylist() == [{"mean": 3.0, "n": 2}]


def test_windows_that_are_open_show_their_results_so_far(tmp_path: Path) -> None:
    with running(tmp_path, lambda rides: rides.group_by("driver", sb.tumbling("1 minute"), name="op").agg(**MEAN)) as t:
        t.feed("rides", [row("a", 1.0, "12:00:10"), row("a", 2.0, "12:01:10")])
        t.feed("rides", [row("a", 4.0, "12:01:20"), row("b", 7.0, "12:01:30"), row("b", 1.0, "12:02:05")])
    assert results(tmp_path) == [
        {"driver": "a", "window_start": at("12:01"), "window_end": at("12:02"), "mean": 3.0, "n": 2},
        {"driver": "b", "window_start": at("12:01"), "window_end": at("12:02"), "mean": 7.0, "n": 1},
        {"driver": "b", "window_start": at("12:02"), "window_end": at("12:03"), "mean": 1.0, "n": 1},
    ]


@pytest.mark.parametrize("window", [sb.sliding("3 minutes", "1 minute"), sb.cumulative("4 minutes", "1 minute")])
def test_results_of_overlapping_windows_are_those_that_closing_them_gives(tmp_path: Path, window: Any) -> None:
    rows = [row("abc"[n % 3], float(n), f"12:{n // 4:02}:{n % 4 * 15:02}") for n in range(48)]
    with running(tmp_path, lambda rides: rides.group_by("driver", window, name="op").agg(**MEAN)) as run:
        for start in range(0, 48, 5):
            run.feed("rides", rows[start : start + 5])
        before = run.output("op")
        shown = results(tmp_path)
        run.watermark("2026-01-01T13:00")
        closed = [one for one in run.output("op") if one not in before]
    assert shown
    assert shown == sorted(closed, key=repr)
    assert results(tmp_path) == []


def test_each_open_session_is_a_row(tmp_path: Path) -> None:
    with running(
        tmp_path, lambda rides: rides.group_by("driver", sb.session("1 minute"), name="op").agg(**MEAN)
    ) as run:
        run.feed("rides", [row("a", 1.0, "12:00:00"), row("a", 3.0, "12:00:30"), row("a", 9.0, "12:01:20")])
        run.feed("rides", [row("b", 5.0, "12:01:21")])
    assert results(tmp_path) == [
        {"driver": "a", "window_start": at("12:00"), "window_end": at("12:02:20"), "mean": 13.0 / 3, "n": 3},
        {"driver": "b", "window_start": at("12:01:21"), "window_end": at("12:02:21"), "mean": 5.0, "n": 1},
    ]


AGGREGATES = {
    "n": sb.count(where="fare > 2"),
    "distinct": sb.count_distinct("cents"),
    "about": sb.approx_count_distinct("cents", precision=12),
    "total": sb.sum("cents"),
    "total_f": sb.sum("fare"),
    "distinct_sum": sb.sum_distinct("cents"),
    "low": sb.min("fare"),
    "high": sb.max("city"),
    "cheapest": sb.min_by("city", "fare"),
    "first": sb.first("city"),
    "last": sb.last("fare"),
    "all": sb.collect_list("cents"),
    "set": sb.collect_set("city"),
    "names": sb.string_agg("city", "; "),
    "median": sb.percentile("fare", 0.5),
    "about_median": sb.approx_percentile("fare", 0.5),
    "deviation": sb.stddev_samp("fare"),
    "r": sb.corr("fare", "cents"),
    "mode": sb.mode("city"),
    "any": sb.bool_or("fare > 3"),
    "bits": sb.bit_xor("cents"),
    "when": sb.max("ts"),
    "money": sb.mean("cast(fare as decimal(10, 2))"),
}


@pytest.mark.parametrize("changelog", [False, True])
def test_every_aggregate_is_finished_as_the_stream_puts_it_out(tmp_path: Path, changelog: bool) -> None:
    def build(rides: Any) -> None:
        aggregates = dict(AGGREGATES)
        if changelog:
            del aggregates["about"]
            rides = rides.key_by("cents", name="newest").deduplicate(keep="last")
        rides.key_by("driver", name="op").agg(**aggregates)

    with running(tmp_path, build) as run:
        for n in range(0, 30, 6):
            some = [row("ab"[k % 2], k % 7 + 0.25, f"12:00:{k:02}", city="xyz"[k % 3]) for k in range(n, n + 6)]
            run.feed("rides", some)
        put_out = run.output("op")
    assert results(tmp_path) == sorted(put_out, key=repr)


def test_the_standing_rows_of_top_n_are_shown_as_rows(tmp_path: Path) -> None:
    def build(rides: Any) -> None:
        rides.key_by("driver", name="op").top(2, "fare desc", number="rank")

    with running(tmp_path, build) as run:
        run.feed("rides", [row("a", 1.0, "12:00"), row("a", 2.0, "12:01"), row("b", 5.0, "12:00")])
        run.feed("rides", [row("a", 6.0, "12:02")])
        put_out = run.output("op")
    assert [(one["driver"], one["fare"], one["rank"]) for one in results(tmp_path)] == [
        ("a", 2.0, 2),
        ("a", 6.0, 1),
        ("b", 5.0, 1),
    ]
    assert results(tmp_path) == sorted(put_out, key=repr)


def test_other_tables_show_their_rows_as_they_are(tmp_path: Path) -> None:
    with running(tmp_path, lambda rides: rides.key_by("driver", name="op").deduplicate(keep="last")) as run:
        run.feed("rides", [row("a", 1.0, "12:00"), row("a", 2.0, "12:01")])
    raw = sb.read_state(tmp_path, job="rides", operator="op").to_arrow()
    finished = sb.read_state(tmp_path, job="rides", operator="op", results=True)
    assert finished.to_arrow() == raw
    assert not finished.finished


def test_results_are_narrowed_by_key_time_condition_and_column(tmp_path: Path) -> None:
    window = sb.sliding("2 minutes", "1 minute")
    with running(tmp_path, lambda rides: rides.group_by("driver", window, name="op").agg(**MEAN)) as run:
        run.feed("rides", [row("ab"[n % 2], float(n), f"12:{n // 2:02}:00") for n in range(12)])
    table = sb.read_state(tmp_path, job="rides", operator="op", results=True)
    everything = table.to_arrow()
    assert table.count() == everything.num_rows > 8
    by_key = everything.filter(pc.field("driver") == "a")
    assert table.keys("a").to_arrow() == by_key
    assert table.filter("driver = 'a'").to_arrow() == by_key
    assert table.keys("a").scan().bytes_read <= table.scan().bytes_read
    some = table.between("2026-01-01 12:02", "2026-01-01 12:04").to_arrow()
    expected = (pc.field("window_start") >= at("12:02")) & (pc.field("window_start") < at("12:04"))
    assert some == everything.filter(expected)
    assert table.filter("mean > 4 and n = 2").to_arrow() == everything.filter(
        (pc.field("mean") > 4) & (pc.field("n") == 2)
    )
    assert table.select("mean", "driver").columns == ["mean", "driver"]
    assert table.select("mean").filter("n = 2").to_arrow().num_rows == table.filter("n = 2").count()
    with pytest.raises(InputError, match="must be distinct columns"):
        table.select("_time")
    with pytest.raises(InputError, match="_mean_total"):
        table.filter("_mean_total > 1")


def test_slices_together_are_the_results(tmp_path: Path) -> None:
    window = sb.sliding("2 minutes", "1 minute")
    with running(tmp_path, lambda rides: rides.group_by("driver", window, name="op").agg(**MEAN), 3) as run:
        for n in range(12):
            run.feed("rides", [row("abcdef"[k % 6], float(n), f"12:{n // 2:02}:00") for k in range(n, n + 4)])
    table = sb.read_state(tmp_path, job="rides", operator="op", results=True)
    found = [
        batch
        for part in table.slices()
        for batch in pickle.loads(pickle.dumps(part)).batches()  # noqa: S301 - our own
    ]
    assert pa.Table.from_batches(found).sort_by("window_end").num_rows == table.count() > 5
    assert sorted(pa.Table.from_batches(found).to_pylist(), key=repr) == results(tmp_path)


class Spread:
    state = "low double, high double"
    output = "double"

    def accumulate(self, groups: pa.Array, n_groups: int, fares: pa.Array) -> list[pa.Array]:
        found = pa.table({"g": groups, "f": fares}).group_by("g").aggregate([("f", "min"), ("f", "max")]).sort_by("g")
        return [found["f_min"].combine_chunks(), found["f_max"].combine_chunks()]

    def merge(self, groups: pa.Array, n_groups: int, low: pa.Array, high: pa.Array) -> list[pa.Array]:
        rows = pa.table({"g": groups, "l": low, "h": high})
        found = rows.group_by("g").aggregate([("l", "min"), ("h", "max")]).sort_by("g")
        return [found["l_min"].combine_chunks(), found["h_max"].combine_chunks()]

    def finish(self, low: pa.Array, high: pa.Array) -> pa.Array:
        return pc.subtract(high, low)


class Newer(Spread):
    version = "2"


def test_a_user_defined_aggregate_is_finished_by_the_object_that_is_given(tmp_path: Path) -> None:
    with running(tmp_path, lambda r: r.key_by("driver", name="op").agg(s=sb.aggregate(Spread(), "fare"))) as run:
        run.feed("rides", [row("a", 1.0, "12:00"), row("a", 5.0, "12:01")])
    with pytest.raises(InputError, match=r"'s'.*Spread") as raised:
        results(tmp_path)
    assert "aggregates={'s': Spread(...)}" in str(raised.value)
    assert results(tmp_path, aggregates={"s": Spread()}) == [{"driver": "a", "s": 4.0}]
    with pytest.raises(InputError, match="but the state was written by"):
        results(tmp_path, aggregates={"s": Newer()})
    with pytest.raises(InputError, match="'t'"):
        results(tmp_path, aggregates={"s": Spread(), "t": Spread()})


def test_a_table_that_is_only_bookkeeping_can_be_read_by_name(tmp_path: Path) -> None:
    with running(
        tmp_path, lambda rides: rides.group_by("driver", sb.session("1 minute"), name="op").agg(**MEAN)
    ) as run:
        run.feed("rides", [row("a", 1.0, "12:00:00")])
    table = sb.read_state(tmp_path, job="rides", operator="op", table="timers", results=True)
    assert (table.finished, table.count()) == (False, 1)
    assert sb.read_state(tmp_path, job="rides", operator="op", results=True).table == "sessions"


def test_collected_values_are_read_from_the_table_that_holds_them(tmp_path: Path) -> None:
    drivers = [f"d{number}" for number in range(150)]
    wanted = {"fares": sb.collect_list("fare"), "cities": sb.string_agg("city", "+"), "n": sb.count()}
    with running(tmp_path, lambda rides: rides.key_by("driver", name="op").agg(**wanted), parallelism=3) as run:
        run.feed("rides", [row(driver, fare, "12:00") for driver in drivers for fare in (-0.0, 2.0)])
        before = run.epoch
        # Nothing but the values changes: neither the latest event time nor, for one of the keys, their number.
        run.feed("rides", [row("d7", 2.0, "11:00", "Bonn"), row("d8", 3.0, "12:00")])
        expected = sorted(run.output("op"), key=repr)
    assert results(tmp_path) == expected
    table = sb.read_state(tmp_path, job="rides", operator="op", results=True)
    assert table.keys("d7").to_arrow().to_pylist() == [
        {"driver": "d7", "fares": [2.0, -0.0, 2.0], "cities": "Bonn+Ulm+Ulm", "n": 3}
    ]
    slices = [pickle.loads(pickle.dumps(one)) for one in table.slices()]  # noqa: S301 - our own bytes
    rows = [row for one in slices for batch in one.batches() for row in batch.to_pylist()]
    assert sorted(rows, key=repr) == expected
    changed = sb.diff_state(tmp_path, job="rides", operator="op", since=before, results=True).to_arrow().to_pylist()
    assert {(row["driver"], row["change"]): row["fares"] for row in changed} == {
        ("d7", "update_before"): [-0.0, 2.0],
        ("d7", "update_after"): [2.0, -0.0, 2.0],
        ("d8", "update_before"): [-0.0, 2.0],
        ("d8", "update_after"): [-0.0, 2.0, 3.0],
    }


def test_the_files_of_collected_values_are_opened_once_for_many_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    class Watched(SegmentReader):
        def __init__(self, entry: Any, *arguments: Any, **options: Any) -> None:
            opened.append(entry.path)
            super().__init__(entry, *arguments, **options)

    with running(tmp_path, lambda rides: rides.key_by("driver", name="op").agg(fares=sb.collect_list("fare"))) as run:
        run.feed("rides", [row(f"d{number}", fare, "12:00") for number in range(60) for fare in (1.0, 2.0)])
    monkeypatch.setattr(read_plan, "SegmentReader", Watched)
    assert [one["fares"] for one in results(tmp_path)] == [[1.0, 2.0]] * 60
    values = [path for path in opened if "-values_0-" in path]
    assert values
    assert len(values) <= 2 * len(set(values)), "the groups of each subtask are one piece"
