"""Changes between two epochs as finished results: the column `mean` holds the mean."""

from pathlib import Path
from typing import Any

import pytest

import statebed as sb
from statebed.errors import InputError
from statebed.flow import Flow
from statebed.storage import LocalStore


@pytest.fixture
def state(tmp_path: Path) -> Path:
    flow = Flow("rides")
    rides = flow.source("rides", "ts timestamp, driver string, cents bigint", watermark=("ts", "0 seconds"))
    rides.key_by("driver", name="totals").agg(trips=sb.count(), mean=sb.mean("cents"))
    rides.key_by("driver", name="best").top(1, "cents desc")
    rides.group_by("driver", sb.tumbling("1 minute"), name="windows").agg(trips=sb.count())
    with sb.testing.run(flow, parallelism=2, store=LocalStore(tmp_path)) as run:
        run.feed("rides", [row("ann", 10), row("bob", 4)])
        run.feed("rides", [row("ann", 20), row("cid", 1)])
    return tmp_path


def row(driver: str, cents: int) -> dict[str, Any]:
    return {"ts": "2026-01-01T12:00:00Z", "driver": driver, "cents": cents}


def changes(state: Path, operator: str, **more: Any) -> list[tuple[Any, ...]]:
    diff = sb.diff_state(state, job="rides", operator=operator, since=2, until=3, results=True, **more)
    assert diff.finished
    return sorted(tuple(one.values()) for one in diff.to_arrow().to_pylist())


def test_changes_of_an_aggregate_show_its_results(state: Path) -> None:
    assert changes(state, "totals") == [
        ("insert", "cid", 1, 1.0),
        ("update_after", "ann", 2, 15.0),
        ("update_before", "ann", 1, 10.0),
    ]


def test_changes_of_top_n_show_its_rows(state: Path) -> None:
    shown = [(kind, driver, cents) for kind, _, driver, cents in changes(state, "best")]
    assert shown == [("insert", "cid", 1), ("update_after", "ann", 20), ("update_before", "ann", 10)]


def test_keys_narrow_changes_of_results(state: Path) -> None:
    diff = sb.diff_state(state, operator="totals", since=2, until=3, results=True).keys("cid")
    assert [one["mean"] for one in diff.to_arrow().to_pylist()] == [1.0]
    assert diff.key_columns == ["driver"]


def test_results_of_windows_are_refused_with_what_to_do(state: Path) -> None:
    with pytest.raises(InputError, match="several panes") as caught:
        changes(state, "windows")
    assert "read_state" in caught.value.fix


def test_aggregates_without_results_are_refused(state: Path) -> None:
    with pytest.raises(InputError, match="`results` is False"):
        sb.diff_state(state, operator="totals", since=2, aggregates={"mean": object()})  # type: ignore[dict-item]
