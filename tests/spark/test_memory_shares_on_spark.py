"""Shares of the memory of tasks: what explain() says of them, and what a run on Spark shows of them."""

import re
from pathlib import Path
from typing import Any

import pytest

import statebed as sb
from statebed.inspect.figures import figures_of
from statebed.inspect.jobs import open_log
from statebed.inspect.records import record_at


def test_shares_are_explained_and_shown_by_the_record_of_a_run(rides: Any, tmp_path: Path) -> None:
    rides.add_files(1)
    shares: dict[str, str | float] = {"counts": "40%", "best.standing": 0.1}
    job = sb.Job("rides", state=rides.state, spark=rides.spark, parallelism=2, memory="1 GiB", memory_shares=shares)
    source = job.source(rides.frame(), name="rides", watermark=("ts", "1 minute"))
    source.key_by("driver", name="counts").agg(ttl="1 day", n=sb.count()).write(
        "sqlite", path=str(tmp_path / "out.db"), table="counts", key="driver"
    )
    source.key_by("driver", name="best").top(1, "ts desc", ttl="1 day").write(sb.MemorySink("best"))
    text = str(job.explain())
    assert re.search(
        r"table groups: .*; keeps 40% of each task's memory \([0-9.]+ [MG]iB\) with its other tables", text
    )
    assert re.search(r"table standing: .*; keeps 10% of each task's memory \([0-9.]+ [MG]iB\)$", text, re.MULTILINE)
    assert job.start(available_now=True).await_termination(180)
    figures = figures_of(record_at(open_log(str(rides.state), "rides"), None))
    assert figures is not None
    assert figures.hosts
    for host in figures.hosts:
        assert set(host.shares) == {"counts", "best.standing"}
        assert all(0 <= host.held[name] <= host.peak_bytes for name in host.shares)
        assert host.shares["counts"] == pytest.approx(4 * host.shares["best.standing"], abs=4)
