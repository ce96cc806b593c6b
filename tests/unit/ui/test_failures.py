"""A job that failed, vanished or lags is seen on its pages, with what to do."""

import re
import time
from pathlib import Path

import pytest
from dashboard_client import DashboardClient
from dashboard_jobs import written

from statebed.checkpoint import CheckpointLog
from statebed.checkpoint.run_status import put_end, put_heartbeat
from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.figures import PHASES
from statebed.maintain.tool_runs import Through, carry_out
from statebed.present.colours import BOXES, DARK, LIGHT, PALETTE, PALETTE_DARK, PHASE_COLOURS, Tone
from statebed.storage import LocalStore, ScopedStore

STYLE = Path(__file__).parents[3] / "src" / "statebed" / "ui" / "static" / "style.css"


@pytest.fixture
def failed(tmp_path: Path) -> tuple[DashboardClient, ScopedStore, int]:
    """A job of four epochs, whose run has ended with an error of the user's."""
    store = LocalStore(tmp_path / "state")
    with written(store) as writer:
        writer.epochs(4, drivers=150, rows=400)
        run = writer.run._cluster.run.number
    folder = ScopedStore(store, "rides")
    now_us = time.time_ns() // 1000
    beat = pb.RunHeartbeat(
        job_id="rides",
        run=run,
        time_us=now_us,
        every_us=20_000_000,
        epoch=5,
        host="driver-1",
        process_id=4711,
        application_id="app-1",
        spark_ui_url="http://driver-1:4040",
        trigger="every 1 s",
        settings={"parallelism": "2", "state": "<script>alert(1)</script>"},
        sources=[pb.SourceProgress(source="rides", offsets_behind=1234, input_rows_per_second=250.5)],
    )
    put_heartbeat(folder, beat)
    error = pb.RunError(
        code="SINK",
        kind="SinkError",
        what="the function of sink mail failed with KeyError: 'address'",
        where="epoch 5, 60 rows",
        fix="fix the function and start the job again",
        traceback="Traceback (most recent call last):\n  File \"job.py\", line 7, in send\nKeyError: 'address'",
    )
    owed = [pb.UndeliveredSink(sink_id="mail", first_epoch=5, epochs=1)]
    end = pb.RunEnd(
        job_id="rides", run=run, outcome=pb.RUN_FAILED, time_us=now_us, epoch=5, error=error, undelivered=owed
    )
    put_end(folder, end)
    return DashboardClient(tmp_path / "state"), folder, run


def test_a_failed_job_is_red_and_not_quiet_with_reason_sinks_and_what_to_do(
    failed: tuple[DashboardClient, ScopedStore, int],
) -> None:
    client, _, _ = failed
    jobs = client.get("/").text
    assert '<span class="badge bad">failed</span>' in jobs
    assert "KeyError" in jobs
    page = client.get("/jobs/rides").text
    assert '<span class="badge bad">failed</span>' in page
    for text in ("SINK", "epoch 5, 60 rows", "sink <bdi>mail</bdi>, epoch 5", "fix the function", "line 7, in send"):
        assert text in page
    assert "quiet</span>" not in page


def test_the_exceptions_of_a_job_are_a_page_of_their_own_with_history(
    failed: tuple[DashboardClient, ScopedStore, int],
) -> None:
    client, folder, run = failed
    put_heartbeat(folder, pb.RunHeartbeat(job_id="rides", run=run + 100, time_us=1))  # of no run in the log
    page = client.get("/jobs/rides/exceptions").text
    assert page.count('class="notice bad failure"') == 1
    assert f"Run {run} failed" in page
    assert "line 7, in send" in page
    assert client.get("/jobs/rides/history").text.count('<span class="badge bad">failed</span>') == 1


def test_a_job_that_ended_well_has_no_exceptions(rides: Path) -> None:
    assert "No exceptions." in DashboardClient(rides).get("/jobs/rides/exceptions").text


def test_configuration_spark_ui_sources_and_rates_are_on_the_page_of_a_job(
    failed: tuple[DashboardClient, ScopedStore, int],
) -> None:
    page = failed[0].get("/jobs/rides").text
    assert '<a href="http://driver-1:4040" rel="noreferrer">Spark UI</a>' in page
    assert "<script>alert" not in page
    for text in (
        "4711",
        "app-1",
        "every 1 s",
        "<code>parallelism</code>",
        "1,234",
        "250/s",
        "input rate",
        "Rows per second",
    ):
        assert text in page


def test_an_address_that_is_no_web_page_is_no_link(failed: tuple[DashboardClient, ScopedStore, int]) -> None:
    client, folder, run = failed
    put_heartbeat(folder, pb.RunHeartbeat(job_id="rides", run=run, spark_ui_url="javascript:alert(1)"))
    assert "javascript:" not in client.get("/jobs/rides").text


def test_sinks_stay_in_the_graph_after_an_offline_tool_and_after_a_stop(
    failed: tuple[DashboardClient, ScopedStore, int],
) -> None:
    client, folder, _ = failed
    assert 'class="box sink"' in client.get("/jobs/rides").text
    for name in ("before", "again"):
        request = pb.Request(savepoint=pb.SavepointRequest(name=name))
        carry_out(CheckpointLog(folder, "rides"), request, through=Through.OWN_RUN)
        page = client.get("/jobs/rides").text
        assert page.count('class="box sink"') == 2
        assert '<span class="badge neutral">stopped</span>' in page


def test_rows_come_in_pages_and_no_row_is_shown_twice(failed: tuple[DashboardClient, ScopedStore, int]) -> None:
    client, _, _ = failed
    address = "/jobs/rides/operators/earned/tables/groups/rows"
    seen: list[str] = []
    for number in range(1, 10):
        page = client.get(f"{address}?page={number}").text
        seen += re.findall(r"<tr><td><bdi>(driver \d+)", page) or re.findall(r"<bdi>(driver \d+)</bdi>", page)
        if ">next<" not in page:
            break
    assert number > 1
    assert len(seen) == len(set(seen)) > 100
    assert "There are no more rows" in client.get(f"{address}?page=90").text
    assert client.get(f"{address}?page=0").status_code == 400
    assert client.get(f"{address}?page=1000000").status_code == 200  # cut to the last page that is read


def test_an_operator_shows_how_evenly_its_subtasks_are_filled(rides: Path) -> None:
    page = DashboardClient(rides).get("/jobs/rides/operators/earned").text
    assert "skew" in page
    assert page.count('<tr><td class="num">') >= 3
    assert "Rows, against the fullest" in page


def test_the_style_sheet_has_the_colours_of_commands_and_notebooks() -> None:
    style = STYLE.read_text()
    light, dark = style.split("@media (prefers-color-scheme: dark)")[:2]
    for number, colour in enumerate(PALETTE):
        assert f"--c{number}: {colour}" in light
    for number, (colour, before) in enumerate(zip(PALETTE_DARK, PALETTE, strict=True)):
        assert colour == before or f"--c{number}: {colour}" in dark
    for tone, name in ((Tone.GOOD, "good"), (Tone.WARN, "warn"), (Tone.BAD, "bad"), (Tone.NEUTRAL, "quiet")):
        assert f"--{name}: {LIGHT[tone]}" in light
        assert f"--{name}: {DARK[tone]}" in dark
    for kind, (fill, _, dark_fill, _) in BOXES.items():
        assert f"--box-{kind}: {fill}" in light
        assert f"--box-{kind}: {dark_fill}" in dark
    assert tuple(PHASE_COLOURS)[:-1] == PHASES
