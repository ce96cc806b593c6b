"""Every page with a real job behind it: what it says, and the right status codes when there is nothing to say."""

import re
import shlex
import shutil
from html import unescape
from pathlib import Path

import pytest
from dashboard_client import DashboardClient

from statebed.checkpoint import Run
from statebed.cli import main
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names, sealed
from statebed.format.sealed import seal
from statebed.storage import LocalStore, ScopedStore
from statebed.testing import cluster
from statebed.ui.definitions import described

PAGES = [
    "/",
    "/jobs/rides",
    "/jobs/rides/epochs",
    "/jobs/rides/epochs?before=5",
    "/jobs/rides/epochs/13",
    "/jobs/rides/history",
    "/jobs/rides/exceptions",
    "/jobs/rides/operators/per_minute",
    "/jobs/rides/operators/per_minute?epoch=4",
    "/jobs/rides/operators/per_minute/tables/partials",
    "/jobs/rides/operators/earned/tables/groups?epoch=4",
]


@pytest.fixture
def client(rides: Path) -> DashboardClient:
    return DashboardClient(rides)


@pytest.mark.parametrize("page", PAGES)
def test_every_page_opens_and_has_a_heading_and_a_title(client: DashboardClient, page: str) -> None:
    answer = client.get(page)
    assert answer.status_code == 200
    assert answer.text.count("<h1") == 1
    assert "<title>" in answer.text
    assert "Undefined" not in answer.text
    assert " style=" not in answer.text  # the policy of the pages would not let it work


def test_the_job_page_tells_the_state_of_things(client: DashboardClient) -> None:
    page = client.get("/jobs/rides").text
    for text in (
        "per_minute",
        "window aggregate",
        "Epoch durations",
        "shuffle",
        "Memory by holder",
        "earned.totals",
    ):
        assert text in page
    assert 'href="/jobs/rides/operators/earned"' in page
    assert 'href="/jobs/rides/epochs/14"' in page


def test_an_epoch_says_what_it_changed_and_compares_rows_when_asked(client: DashboardClient) -> None:
    page = client.get("/jobs/rides/epochs/13").text
    assert "Compared with" in page
    address = "/jobs/rides/operators/earned/tables/groups/changes?epoch=13"
    assert address in page
    changes = client.get(address)
    assert changes.status_code == 200
    assert "update after" in changes.text


def test_a_run_start_changes_nothing_and_says_so(client: DashboardClient) -> None:
    page = client.get("/jobs/rides/epochs/8").text
    assert "Run start 8" in page
    assert "It changes no state." in page


def test_rows_are_searched_by_key_and_condition_and_say_what_was_read(client: DashboardClient) -> None:
    rows = "/jobs/rides/operators/earned/tables/groups/rows"
    assert client.get(rows).text.count("<tr>") > 10
    one = client.get(rows, params={"key0": "driver 7"})
    assert one.status_code == 200
    assert one.text.count("<bdi>driver 7</bdi>") == 1
    assert "row group" in one.text
    none = client.get(rows, params={"key0": "nobody"})
    assert "No row matches." in none.text
    some = client.get(rows, params={"where": "driver like 'driver 1%' and total > 0"})
    assert "<bdi>driver 1</bdi>" in some.text
    assert "<bdi>driver 7</bdi>" not in some.text


def test_rows_are_searched_by_time_and_as_of_an_older_epoch(client: DashboardClient) -> None:
    rows = "/jobs/rides/operators/per_minute/tables/partials/rows"
    early = client.get(rows, params={"epoch": "4", "until": "2026-01-01 12:01"})
    assert early.status_code == 200
    assert "2026-01-01T12:01:00Z" in early.text, "the end of the window that starts before"
    assert "2026-01-01T12:02:00Z" not in early.text
    partials = client.get(rows, params={"epoch": "4", "until": "2026-01-01 12:01", "stored": "1"}).text
    assert "2026-01-01T12:00:00Z" in partials
    assert "2026-01-01T12:01:00Z" not in partials
    assert client.get(rows, params={"from": "yesterday"}).status_code == 400
    older = client.get("/jobs/rides/operators/per_minute/tables/partials", params={"epoch": "4", "key0": "driver 7"})
    assert 'name="epoch" value="4"' in older.text
    assert "rows?epoch=4&amp;key0=driver" in older.text


def test_a_condition_that_cannot_be_understood_is_explained(client: DashboardClient) -> None:
    answer = client.get("/jobs/rides/operators/earned/tables/groups/rows", params={"where": "driver >"})
    assert answer.status_code == 400
    assert 'role="alert"' in answer.text


def test_what_was_searched_stays_in_the_form(client: DashboardClient) -> None:
    page = client.get("/jobs/rides/operators/earned/tables/groups", params={"key0": '"><script>'}).text
    assert 'value="&#34;&gt;&lt;script&gt;"' in page


@pytest.mark.parametrize(
    ("page", "status", "text"),
    [
        ("/jobs/nobody", 404, "has no record"),
        ("/jobs/%3Cscript%3E", 404, "there is no job"),
        ("/jobs/..%2F..%2Fetc", 404, ""),
        ("/jobs/rides/epochs/999", 404, "no record of epoch 999"),
        ("/jobs/rides/epochs/0", 400, "must be a whole number of at least 1"),
        ("/jobs/rides/epochs/x", 400, "must be a whole number of at least 1"),
        ("/jobs/rides/epochs?before=-1", 400, "must be a whole number of at least 1"),
        ("/jobs/rides/operators/nobody", 404, "available operators"),
        ("/jobs/rides/operators/earned/tables/nothing", 404, "available tables: groups"),
        ("/nowhere", 404, "Not found"),
    ],
)
def test_what_is_not_there_is_a_friendly_page(client: DashboardClient, page: str, status: int, text: str) -> None:
    answer = client.get(page)
    assert answer.status_code == status
    assert text in answer.text
    assert "<script>" not in answer.text
    assert 'href="/"' in answer.text


def test_prometheus_reads_the_figures_of_all_jobs(client: DashboardClient) -> None:
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert 'job_name="rides"' in answer.text


def test_nothing_but_looking_is_allowed(client: DashboardClient) -> None:
    assert client.ask("POST", "/jobs/rides").status_code == 405
    assert client.ask("DELETE", "/jobs/rides/epochs/3").status_code == 405


def test_an_empty_location_says_how_to_begin(tmp_path: Path) -> None:
    answer = DashboardClient(tmp_path).get("/")
    assert answer.status_code == 200
    assert "No job has state here yet" in answer.text
    assert str(tmp_path) in answer.text


def test_a_location_that_is_not_there_or_is_a_job_is_explained(tmp_path: Path, rides: Path) -> None:
    missing = DashboardClient(tmp_path / "nowhere").get("/")
    assert missing.status_code == 400
    assert "does not exist" in missing.text
    inside = DashboardClient(rides / "rides").get("/")
    assert inside.status_code == 400
    assert "pass its parent folder" in inside.text


def test_a_damaged_record_hides_nothing_else(rides: Path, tmp_path: Path) -> None:
    shutil.copytree(rides, tmp_path / "state")
    record = tmp_path / "state" / "rides" / names.record(14)
    data = bytearray(record.read_bytes())
    data[20] ^= 1
    record.write_bytes(data)
    client = DashboardClient(tmp_path / "state")
    page = client.get("/jobs/rides")
    assert page.status_code == 200
    assert "1 record cannot be read" in page.text
    assert "statebed verify" in page.text
    assert "Epoch durations" in page.text
    assert "damaged" in client.get("/").text
    itself = client.get("/jobs/rides/epochs/14")
    assert itself.status_code == 500
    assert names.record(14) in itself.text
    assert client.get("/jobs/rides/epochs/13").status_code == 200


def test_a_job_whose_records_are_all_damaged_is_explained(tmp_path: Path) -> None:
    store = ScopedStore(LocalStore(tmp_path), "rides")
    for epoch in (1, 2):
        store.put(names.record(epoch), b"nonsense")
    answer = DashboardClient(tmp_path).get("/jobs/rides")
    assert answer.status_code == 500
    assert names.record(2) in answer.text


def test_missing_metadata_is_named_and_the_plots_stay(rides: Path, tmp_path: Path) -> None:
    shutil.copytree(rides, tmp_path / "state")
    for path in (tmp_path / "state" / "rides" / names.epoch_folder(14)).glob("operator-*"):
        path.unlink()
    page = DashboardClient(tmp_path / "state").get("/jobs/rides")
    assert page.status_code == 200
    assert "metadata refers to an object that does not exist" in page.text
    assert "Epoch durations" in page.text


def test_a_job_that_vanishes_is_gone_and_one_that_begins_again_is_new(
    rides: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("statebed.ui.location.LOOK_AGAIN_SECONDS", -1.0)
    state = tmp_path / "state"
    shutil.copytree(rides, state)
    client = DashboardClient(state)
    assert "14" in client.get("/jobs/rides").text
    shutil.rmtree(state / "rides")
    assert client.get("/jobs/rides").status_code == 404
    again = pb.CheckpointMetadata(job_id="rides", epoch=1, kind=pb.RUN_START, run=1, nonce="new", lineage="another")
    LocalStore(state).put(f"rides/{names.record(1)}", seal(again))
    assert "another" in client.get("/jobs/rides/history").text


def test_a_record_of_a_newer_format_says_to_upgrade(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = pb.CheckpointMetadata(job_id="rides", epoch=1, kind=pb.RUN_START, run=1, nonce="n")
    monkeypatch.setattr(sealed, "FORMAT_VERSION", sealed.FORMAT_VERSION + 1)
    LocalStore(tmp_path).put(f"rides/{names.record(1)}", seal(newer))
    monkeypatch.undo()
    client = DashboardClient(tmp_path)
    assert client.get("/jobs/rides/epochs/1").status_code == 501
    assert "newer format" in client.get("/").text


def test_a_job_that_has_only_begun_is_shown(tmp_path: Path) -> None:
    Run.open(ScopedStore(LocalStore(tmp_path), "young"), "young")
    client = DashboardClient(tmp_path)
    page = client.get("/jobs/young")
    assert page.status_code == 200
    assert "Plots begin with the first epoch." in page.text
    assert client.get("/jobs/young/history").status_code == 200
    assert "It changes no state." in client.get("/jobs/young/epochs/1").text


def test_a_definition_says_when_results_are_emitted() -> None:
    assert dict(described('{"emit": ["at close", 0]}')) == {"emit": "at close"}
    assert dict(described('{"emit": ["at close", 60000000]}')) == {"emit": "at close, allowed lateness 1 min"}
    assert dict(described('{"emit": ["at close", "?"]}')) == {"emit": "at close, ?"}


def test_the_history_of_a_job_without_savepoints_shows_a_command_that_exists(tmp_path: Path) -> None:
    Run.open(ScopedStore(LocalStore(tmp_path), "young"), "young")
    page = DashboardClient(tmp_path).get("/jobs/young/history").text
    [command] = re.findall("<code>statebed (.*?)</code>", page)
    assert main([*shlex.split(unescape(command)), "--help"]) == 0
    assert main(["savepoint", *shlex.split(unescape(command))[2:], "--help"]) == 2


def test_records_of_an_engine_without_spark_have_what_they_tell(tmp_path: Path) -> None:
    """No definitions, no inputs, no figures: as the oldest records are."""
    entry = pb.OperatorEntry(operator_id="sums", parallelism=1)
    record = pb.CheckpointMetadata(
        job_id="plain",
        epoch=1,
        kind=pb.EPOCH,
        run=1,
        nonce="n",
        operators=[entry],
        source_position=pb.SourcePosition(kind=cluster.SOURCE_KIND),
    )
    LocalStore(tmp_path).put(f"plain/{names.record(1)}", seal(record))
    client = DashboardClient(tmp_path)
    for page in ("/", "/jobs/plain", "/jobs/plain/epochs/1", "/jobs/plain/operators/sums", "/jobs/plain/history"):
        assert client.get(page).status_code == 200, page


def test_texts_of_records_are_text(tmp_path: Path) -> None:
    """A record can hold any text: somebody else may have written it."""
    evil = '"><script>alert(1)</script>\u202e'
    record = pb.CheckpointMetadata(
        job_id="evil",
        epoch=1,
        kind=pb.EPOCH,
        run=1,
        nonce="n",
        lineage=evil,
        written_by=evil,
        operators=[
            pb.OperatorEntry(
                operator_id="per_minute",  # names of operators and files are checked when a record is read
                definition=f'{{"kind": {evil!r}}}',
                fingerprint=evil,
                inputs=[pb.InputWatermark(input=evil, origins=[evil])],
            )
        ],
        sinks=[pb.SinkEntry(sink_id="mail", operator_id="per_minute")],
        sources=[pb.SourceWatermark(source=evil)],
        source_position=pb.SourcePosition(kind=evil, query_id=evil),
        pins=[pb.Pin(savepoint="monday", epoch=1, path="x")],
    )
    LocalStore(tmp_path).put(f"evil/{names.record(1)}", seal(record))
    error = pb.RunError(code=evil, kind=evil, what=evil, where=evil, fix=evil, traceback=evil)
    owed = [pb.UndeliveredSink(sink_id=evil, first_epoch=1, epochs=2)]
    end = pb.RunEnd(run=1, outcome=pb.RUN_FAILED, error=error, undelivered=owed)
    beat = pb.RunHeartbeat(
        run=1, host=evil, trigger=evil, application_id=evil, spark_ui_url=evil, settings={evil: evil}
    )
    beat.sources.add(source=evil, latest_offset=evil)
    LocalStore(tmp_path).put(f"evil/{names.run_end(1)}", seal(end))
    LocalStore(tmp_path).put(f"evil/{names.run_heartbeat(1)}", seal(beat))
    (tmp_path / "<img src=x onerror=alert(1)>").mkdir()
    (tmp_path / "<img src=x onerror=alert(1)>" / "file").write_text("x")
    client = DashboardClient(tmp_path)
    for page in (
        "/",
        "/jobs/evil",
        "/jobs/evil/epochs",
        "/jobs/evil/epochs/1",
        "/jobs/evil/history",
        "/jobs/evil/exceptions",
    ):
        answer = client.get(page)
        assert answer.status_code == 200, page
        assert "<script>alert" not in answer.text
        assert "<img src=x" not in answer.text
        assert "\u202e" not in answer.text
    assert "&lt;img src=x" in client.get("/").text


def test_a_sink_of_several_operators_has_the_files_of_all(tmp_path: Path) -> None:
    record = pb.CheckpointMetadata(
        job_id="rides",
        epoch=1,
        kind=pb.EPOCH,
        run=1,
        nonce="n",
        sinks=[pb.SinkEntry(sink_id="both", stream="for_both")],
        outbox=[
            pb.OutboxFile(operator_id=name, stream="for_both", path=f"{name}.parquet", rows=rows, size=10)
            for name, rows in (("a", 300), ("b", 45))
        ],
    )
    LocalStore(tmp_path).put(f"rides/{names.record(1)}", seal(record))
    page = DashboardClient(tmp_path).get("/jobs/rides/epochs/1").text
    assert '<td class="num">345</td>' in page
    assert "not yet" in page
