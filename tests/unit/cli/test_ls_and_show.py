"""ls and show: what the records say, in words and as JSON."""

import io
import json
from pathlib import Path

import pytest
from command_line import Call
from rich.console import Console

from statebed.checkpoint import Run
from statebed.checkpoint.run_status import put_end
from statebed.cli.output import fit
from statebed.cli.render import EXPENDABLE_EPOCH_COLUMNS, epochs_table
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names, sealed
from statebed.format.sealed import open_sealed
from statebed.inspect.jobs import open_log
from statebed.inspect.records import summarise_epochs
from statebed.storage import LocalStore, ScopedStore


def test_ls_lists_the_jobs_and_passes_over_other_folders(statebed: Call, location: Path) -> None:
    jobs = json.loads(statebed("ls", location, "--json").out)
    assert [(job["job"], job["head"], job["lineage"], job["status"]) for job in jobs] == [
        ("rides", 6, "000000000005", "complete")
    ]
    shown = statebed("ls", location)
    assert shown.code == 0
    assert "rides" in shown.out
    assert "events" not in shown.out


def test_ls_of_an_empty_location_says_so(statebed: Call, tmp_path: Path) -> None:
    shown = statebed("ls", tmp_path)
    assert (shown.code, "no job" in shown.out) == (0, True)
    assert statebed("ls", tmp_path, "--json").out == "[]\n"


@pytest.mark.parametrize("arguments", [["ls", "PLACE"], ["ls", "PLACE", "rides"], ["show", "PLACE", "rides"]])
@pytest.mark.parametrize(("place", "words"), [("nothing", "does not exist"), ("file", "is a file")])
def test_a_location_that_is_no_folder_is_an_error_and_nothing_is_made(
    statebed: Call, tmp_path: Path, arguments: list[str], place: str, words: str
) -> None:
    (tmp_path / "file").write_text("x")
    failed = statebed(*[str(tmp_path / place) if argument == "PLACE" else argument for argument in arguments])
    assert (failed.code, failed.out) == (1, "")
    assert words in failed.err
    assert not (tmp_path / "nothing").exists()


def test_the_folder_of_a_job_in_place_of_its_location_is_explained(statebed: Call, location: Path) -> None:
    failed = statebed("ls", location / "rides")
    assert failed.code == 1
    assert f"statebed ls {location} rides" in failed.err


def test_ls_of_a_job_tells_abandoned_epochs_from_current_ones(statebed: Call, location: Path) -> None:
    epochs = json.loads(statebed("ls", location, "rides", "--json").out)
    assert {epoch["epoch"]: epoch["status"] for epoch in epochs} == {
        1: "complete",
        2: "complete",
        3: "abandoned",
        4: "abandoned",
        5: "complete",
        6: "complete",
    }
    assert [epoch["kind"] for epoch in epochs] == [
        "run_start",
        "epoch",
        "epoch",
        "epoch",
        "run_start",
        "epoch",
    ]
    assert epochs[-1]["batch"] == 16
    assert (epochs[-1]["rows_in"], epochs[-1]["rows_late"], epochs[-1]["rows_out"]) == (600, 3, 7)
    folder = location / "rides" / "checkpoints" / "000000000006"
    assert epochs[-1]["bytes"] == sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert epochs[-1]["finish_time"] == "2026-01-01T12:00:00.250000Z"


def test_ls_counts_no_rows_for_a_run_start(statebed: Call, location: Path) -> None:
    start = json.loads(statebed("ls", location, "rides", "--json").out)[4]
    assert (start["rows_in"], start["batch"]) == (0, None)


def test_ls_names_a_damaged_record_and_lists_the_rest(statebed: Call, location: Path) -> None:
    damaged = location / "rides" / names.record(3)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    epochs = json.loads(statebed("ls", location, "rides", "--json").out)
    assert epochs[2]["status"] == "damaged"
    assert epochs[2]["problem"]
    assert len(epochs) == 6
    assert "damaged" in statebed("ls", location, "rides").out


def test_p7_ls_names_a_record_that_was_removed_between_others(statebed: Call, location: Path) -> None:
    (location / "rides" / names.record(3)).unlink()
    epochs = json.loads(statebed("ls", location, "rides", "--json").out)
    assert [(epoch["epoch"], epoch["status"]) for epoch in epochs[1:4]] == [
        (2, "complete"),
        (3, "missing"),
        (4, "abandoned"),
    ]
    assert len(epochs) == 6, "epoch 7, which was begun and not committed, is none"


def test_p7_a_damaged_newest_record_is_never_passed_over_in_silence(statebed: Call, location: Path) -> None:
    damaged = location / "rides" / names.record(6)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    failed = statebed("show", location, "rides")
    assert (failed.code, failed.out) == (1, "")
    assert "[CORRUPT_RECORD]" in failed.err
    assert str(damaged) in failed.err
    [job] = json.loads(statebed("ls", location, "--json").out)
    assert (job["head"], job["status"], job["finish_time"]) == (6, "damaged", None)
    assert "record 6" in job["problem"]
    assert json.loads(statebed("ls", location, "rides", "--json").out)[-1]["finish_time"] is None


def test_a_job_of_a_newer_format_does_not_hide_the_others(
    statebed: Call, location: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = location / "rides" / names.record(6)
    newer = open_sealed(pb.CheckpointMetadata, record.read_bytes(), where="")
    other = ScopedStore(LocalStore(location), "taxis")
    Run.open(other, "taxis")
    monkeypatch.setattr(sealed, "FORMAT_VERSION", sealed.FORMAT_VERSION + 1)
    record.write_bytes(sealed.seal(newer))
    monkeypatch.undo()
    jobs = json.loads(statebed("ls", location, "--json").out)
    assert [(job["job"], job["status"]) for job in jobs] == [("rides", "newer format"), ("taxis", "complete")]
    assert "newer format" in statebed("ls", location, "rides").out
    assert "[NEWER_FORMAT]" in statebed("show", location, "rides").err


def test_the_epochs_fit_a_narrow_terminal_and_what_was_left_out_is_named(location: Path) -> None:
    narrow = Console(width=80, file=io.StringIO())
    epochs = summarise_epochs(open_log(str(location), "rides"))
    narrow.print(fit(epochs_table(epochs, title="epochs"), narrow, expendable=EXPENDABLE_EPOCH_COLUMNS))
    assert isinstance(narrow.file, io.StringIO)
    shown = narrow.file.getvalue()
    assert "columns hidden at this width: lineage, batch" in shown
    for number in range(1, 7):
        assert sum(line.split()[:1] == [str(number)] for line in shown.splitlines()) == 1
    assert "2026-01-01 12:00:00" in shown, "no cell is folded"


def test_show_takes_the_newest_epoch_unless_told(statebed: Call, location: Path) -> None:
    newest = json.loads(statebed("show", location, "rides", "--json").out)
    assert newest["epoch"] == 6
    assert newest["tables"] == [
        {
            "operator": "per_minute",
            "table": "partials",
            "kind": "time keyed",
            "tier": "local disk",
            "subtasks": 1,
            "files": 1,
            "rows": 40,
            "bytes": 1500,
            "tombstones": 0,
            "levels": {"0": 1},
        }
    ]
    assert newest["operators"][0]["watermark"] == newest["watermark"] == "2026-01-01T12:00:00Z"
    assert newest["operators"][0]["output_watermark"] == "2026-01-01T12:00:59.999999Z"
    assert newest["sinks"][0]["published"] is True
    older = json.loads(statebed("show", location, "rides", "4", "--json").out)
    assert (older["epoch"], older["sinks"][0]["published"]) == (4, False)


def test_show_says_it_in_words(statebed: Call, location: Path) -> None:
    shown = statebed("show", location, "rides")
    assert shown.code == 0
    for words in ("Epoch 6 of job 'rides'", "builds on epoch 2", "batch 16", "per_minute", "1.5 kB", "yes"):
        assert words in shown.out


def test_an_unknown_job_is_named_with_those_that_exist(statebed: Call, location: Path) -> None:
    failed = statebed("show", location, "taxis")
    assert failed.code == 1
    assert failed.out == ""
    assert "[JOB_NOT_FOUND]" in failed.err
    assert "rides" in failed.err
    assert "Traceback" not in failed.err


def test_debug_shows_the_traceback(statebed: Call, location: Path) -> None:
    failed = statebed("--debug", "show", location, "taxis")
    assert failed.code == 1
    assert "Traceback" in failed.err
    assert "[JOB_NOT_FOUND]" in failed.err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["show", "STATE", "rides", "99"], "EPOCH_NOT_RETAINED"), (["ls", "ftp://x"], "UNKNOWN_SCHEME")],
)
def test_errors_are_text_with_their_code(statebed: Call, location: Path, arguments: list[str], code: str) -> None:
    failed = statebed(*[str(location) if argument == "STATE" else argument for argument in arguments])
    assert failed.code == 1
    assert f"[{code}]" in failed.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["show"],
        ["ls", "--nonsense"],
        ["show", "s", "j", "zero"],
        ["demo", "--kills", "2"],
        ["demo", "--crash", "--files", "2"],
    ],
)
def test_wrong_usage_exits_with_2(statebed: Call, arguments: list[str]) -> None:
    assert statebed(*arguments).code == 2


def test_a_job_that_failed_is_told_by_ls_show_and_top_with_reason_sinks_and_what_to_do(
    statebed: Call, location: Path
) -> None:
    store = ScopedStore(LocalStore(location), "rides")
    error = pb.RunError(
        code="SINK", what="the function failed\x1b[0m", where="epoch 6", fix="mend it", traceback="a\nb"
    )
    owed = [pb.UndeliveredSink(sink_id="mail", first_epoch=6, epochs=1)]
    put_end(store, pb.RunEnd(run=5, outcome=pb.RUN_FAILED, time_us=1, error=error, undelivered=owed))
    (job,) = json.loads(statebed("ls", location, "--json").out)
    assert job["status"] == "failed"
    assert job["run"]["state"] == "failed"
    assert job["run"]["undelivered"] == [{"sink": "mail", "first_epoch": 6, "epochs": 1}]
    for command in (["ls"], ["ls", "rides"], ["ls", "rides", "--runs"], ["show", "rides"], ["top", "rides", "--once"]):
        shown = statebed(command[0], location, *command[1:]).out
        lines = [
            "run 5 failed: [SINK] the function failed\\x1b[0m",
            "  when: 1970-01-01 00:00:00 UTC,",
            "  where: epoch 6",
            "  undelivered: mail (epoch 6); delivered first at the next start",
            "  what to do: mend it",
            "    b",
        ]
        for line in lines:
            assert line in shown, command
    (run,) = [one for one in json.loads(statebed("ls", location, "rides", "--runs", "--json").out) if one["run"] == 5]
    assert run["report"]["state"] == "failed"
    assert json.loads(statebed("show", location, "rides", "--json").out)["run_report"]["code"] == "SINK"
    assert "run 5 failed" not in statebed("show", location, "rides", "6").out
