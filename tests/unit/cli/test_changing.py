"""The commands that check, mend and change state: what they print, their exit codes, and each of their errors."""

import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer
from command_line import Call
from maintained_job import JOB, ListSink, MaintainedJob, maintained_job

from statebed.cli.render_changes import numbers
from statebed.format import names
from statebed.storage import LocalStore


@contextmanager
def written(state: Path) -> Iterator[MaintainedJob]:
    """Epochs 2 to 5, on disk."""
    with maintained_job(disk=LocalStore(state)) as made:
        made.open()
        for _ in range(4):
            made.epoch()
        yield made


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MaintainedJob]:
    with written(tmp_path_factory.mktemp("template") / "state") as made:
        yield made


@pytest.fixture
def job(template: MaintainedJob, tmp_path: Path) -> MaintainedJob:
    """The job, not running, in a folder of the test's own."""
    shutil.copytree(template.disk.url, tmp_path / "state")
    sink = ListSink()
    sink.position, sink.epochs = template.sink.position, list(template.sink.epochs)
    return MaintainedJob(template.tiers, LocalStore(tmp_path / "state"), sink=sink, states=dict(template.states))


@pytest.fixture
def live(tmp_path: Path) -> Iterator[MaintainedJob]:
    """Return the job, with a run that continues."""
    with written(tmp_path / "live") as made:
        yield made


@pytest.fixture
def state(job: MaintainedJob) -> str:
    return job.disk.url


def flip(job: MaintainedJob, path: str) -> None:
    data = bytearray(job.store.get(path))
    data[len(data) // 2] ^= 1
    (Path(job.disk.url) / JOB / path).write_bytes(bytes(data))


def own_file(job: MaintainedJob, epoch: int, part: str = "data/totals-counts") -> str:
    return next(info.path for info in job.store.list(names.epoch_folder(epoch)) if part in info.path)


def documents(text: str) -> Any:
    return json.loads(text)


# ---- verify and repair ---------------------------------------------------------------------------------------------


def test_verify_says_that_everything_is_whole(statebed: Call, state: str) -> None:
    outcome = statebed("verify", state, JOB)
    assert (outcome.code, outcome.err) == (0, "")
    assert "epochs 1-5, 0 savepoints" in outcome.out
    assert outcome.out.endswith("everything is intact\n")
    found = documents(statebed("verify", state, JOB, "--json").out)
    assert (found["whole"], found["head_whole"], found["epochs"]) == (True, True, [1, 2, 3, 4, 5])


def test_p7_verify_names_what_is_damaged_and_who_needs_it_with_exit_code_1(
    statebed: Call, state: str, job: MaintainedJob
) -> None:
    path = own_file(job, 4)
    flip(job, path)
    outcome = statebed("verify", state, JOB)
    assert outcome.code == 1
    assert path in outcome.out
    assert f"damaged: {path}\n    data file: the checksum of" in outcome.out
    assert "needed by epochs 4-5\n" in outcome.out
    assert "`statebed repair` shows what can be done" in outcome.out
    told = statebed("verify", state, JOB, "--json")
    assert told.code == 1
    (finding,) = documents(told.out)["findings"]
    assert (finding["path"], finding["kind"], finding["trouble"], finding["epochs"]) == (
        path,
        "data file",
        "damaged",
        [4, 5],
    )
    assert statebed("verify", state, JOB, "--epoch", "3").code == 0
    assert statebed("verify", state, JOB, "--epoch", "4").code == 1


def test_verify_lists_what_nothing_names(statebed: Call, state: str, job: MaintainedJob) -> None:
    job.store.put(names.data_file(4, "totals", "counts", 0, "0" * 32), b"left")
    assert "unreferenced, not an error: 1 garbage" in statebed("verify", state, JOB).out
    assert names.data_file(4, "totals", "counts", 0, "0" * 32) in statebed("verify", state, JOB, "--orphans").out


def test_repair_says_what_is_lost_and_brings_the_job_back(statebed: Call, state: str, job: MaintainedJob) -> None:
    flip(job, own_file(job, 4))
    planned = statebed("repair", state, JOB, "--dry-run")
    assert planned.code == 0
    assert "newest intact state: epoch 3" in planned.out
    assert "lost: the work of epochs 4-5 (48 rows read by operators)" in planned.out
    assert "already published: epochs 4-5 to table" in planned.out
    refused = statebed("repair", state, JOB)
    assert refused.code == 1
    assert "stdin is not a terminal" in refused.err
    done = statebed("repair", state, JOB, "--yes")
    assert done.code == 0
    assert "run 6 builds on epoch 3" in done.out
    job.open()
    assert job.read(job.run.head) == job.states[3]
    assert statebed("verify", state, JOB, "--epoch", "6").code == 0
    assert "nothing to repair" in statebed("repair", state, JOB).out


def test_repair_in_json(statebed: Call, state: str, job: MaintainedJob) -> None:
    assert documents(statebed("repair", state, JOB, "--json").out)["changed"] is None
    flip(job, names.record(5))
    told = documents(statebed("repair", state, JOB, "--yes", "--json").out)
    assert (told["plan"]["base"], told["plan"]["lost"], told["plan"]["published"]) == (4, [5], {"5": ["table"]})
    assert told["changed"]["run"] == 6


def test_repair_without_anything_whole_is_an_error(statebed: Call, state: str, job: MaintainedJob) -> None:
    for number in range(1, 6):
        flip(job, names.record(number))
    outcome = statebed("repair", state, JOB, "--yes")
    assert outcome.code == 1
    assert "NOTHING_INTACT" in outcome.err


# ---- savepoints, clones, stops -------------------------------------------------------------------------------------


def test_savepoints_are_made_listed_and_dropped(statebed: Call, state: str) -> None:
    assert statebed("savepoint", "list", state, JOB).out == "shop has no savepoints\n"
    made = statebed("savepoint", "create", state, JOB, "monday", "--epoch", "3", "--offline", "--yes")
    assert made.out == "savepoint 'monday' is created: record 7 of run 6 (a separate run)\n"
    assert "monday" in statebed("savepoint", "list", state, JOB).out
    (listed,) = documents(statebed("savepoint", "list", state, JOB, "--json").out)
    assert (listed["name"], listed["epoch"], listed["made_in"]) == ("monday", 3, 7)
    assert documents(statebed("verify", state, JOB, "--savepoint", "monday", "--json").out)["savepoints"] == ["monday"]
    taken = statebed("savepoint", "create", state, JOB, "monday", "--offline", "--yes")
    assert (taken.code, "savepoint 'monday' already exists" in taken.err) == (1, True)
    dropped = statebed("savepoint", "drop", state, JOB, "monday", "--offline", "--yes", "--json")
    assert documents(dropped.out)["through"] == "a separate run"
    assert "no savepoint 'monday'" in statebed("savepoint", "drop", state, JOB, "monday", "--offline", "--yes").err


def test_the_live_run_is_asked_unless_told_otherwise(statebed: Call, live: MaintainedJob) -> None:
    state = live.disk.url
    ended = threading.Event()

    def serve() -> None:
        while not ended.wait(0.02):
            if live.run.serve_requests():
                live.run.commit(live.run.carry_over())

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        made = statebed("savepoint", "create", state, JOB, "monday", "--timeout", "20")
        merged = statebed("compact", state, JOB, "--timeout", "20")
        cleaned = statebed("gc", state, JOB, "--timeout", "20")
        stopped = statebed("stop", state, JOB, "--drain", "--timeout", "20")
    finally:
        ended.set()
        thread.join(10)
    assert made.out == "savepoint 'monday' is created: record 6 of run 1 (the live run)\n"
    assert merged.out.startswith("files are compacted after the next epoch: record 7 of run 1")
    assert cleaned.out.startswith("the live run will clean up: record 8")
    assert stopped.out.startswith("drained and stopped: record 9")


@pytest.mark.parametrize(
    "command",
    [["savepoint", "create"], ["compact"], ["gc"], ["stop"]],
    ids=" ".join,
)
def test_where_nobody_answers_the_other_way_is_offered(
    statebed: Call, state: str, job: MaintainedJob, command: list[str]
) -> None:
    name = ["monday"] if command[0] == "savepoint" else []
    outcome = statebed(*command, state, JOB, *name, "--timeout", "0.1")
    assert outcome.code == 1
    assert "no run of the job answered within 0.1 s" in outcome.err
    assert "--offline" in outcome.err
    assert not list(job.store.list(names.REQUESTS))


def test_after_a_run_that_ended_commands_act_at_once_and_say_so(statebed: Call, state: str) -> None:
    # The run of an offline command ends with its record.
    statebed("savepoint", "create", state, JOB, "monday", "--offline", "--yes")
    dropped = statebed("savepoint", "drop", state, JOB, "monday", "--timeout", "60")
    assert (dropped.code, "a separate run: the job is not running" in dropped.out) == (0, True)
    assert statebed("compact", state, JOB, "--operator", "totals", "--timeout", "60").code == 0
    assert "the state has 3 subtasks" in statebed("rescale", state, JOB, "3").out
    assert "removed" in statebed("gc", state, JOB, "--timeout", "60").out
    assert "nothing to do: the job is not running" in statebed("stop", state, JOB, "--timeout", "60").out
    assert "not running" in statebed("stop", state, JOB, "--drain", "--timeout", "60").err


def test_clone_copies_a_job(statebed: Call, state: str) -> None:
    assert "copy is a copy of shop at epoch 4" in statebed("clone", state, JOB, "copy", "--epoch", "4").out
    assert statebed("verify", state, "copy").code == 0
    taken = statebed("clone", state, JOB, "copy")
    assert (taken.code, "already exists" in taken.err) == (1, True)
    assert documents(statebed("clone", state, JOB, "other", "--json").out)["epoch"] == 5


def test_a_job_is_stopped_by_a_run_of_ones_own(statebed: Call, state: str) -> None:
    assert statebed("stop", state, JOB, "--offline", "--yes").out.startswith("stopped: record 7 of run 6")
    drained = statebed("stop", state, JOB, "--offline", "--yes", "--drain")
    assert (drained.code, "a drain needs the live run" in drained.err) == (1, True)


# ---- state written anew, garbage -----------------------------------------------------------------------------------


def test_rescale_is_for_stopped_jobs(statebed: Call, state: str, job: MaintainedJob) -> None:
    refused = statebed("rescale", state, JOB, "3")
    assert refused.code == 1
    assert "parallelism=3" in refused.err
    done = statebed("rescale", state, JOB, "3", "--offline", "--yes")
    assert done.out == "the state has 3 subtasks: record 7 of run 6 (a separate run)\n"
    assert statebed("rescale", state, JOB, "3", "--offline", "--yes").out == "the state has 3 subtasks already\n"
    assert "must be from 1 to 65536" in statebed("rescale", state, JOB, "0", "--offline", "--yes").err
    job.parallelism = 3
    job.open()
    assert job.read(job.run.head) == job.states[5]


def test_compact_merges_all_files_of_a_stopped_job(statebed: Call, state: str) -> None:
    assert "chooses the files" in statebed("compact", state, JOB, "--operator", "totals").err
    done = statebed("compact", state, JOB, "--offline", "--yes", "--memory", "64m")
    assert done.code == 0
    assert "8 -> 2" in done.out
    assert statebed("compact", state, JOB, "--offline", "--yes").out == "no files need compaction\n"
    assert documents(statebed("compact", state, JOB, "--offline", "--yes", "--json").out)["changed"] is None
    assert "no operator 'nothing'" in statebed("compact", state, JOB, "-o", "nothing", "--offline", "--yes").err


def test_migrate_finds_nothing_to_do_in_a_job_of_today(statebed: Call, state: str) -> None:
    assert statebed("migrate", state, JOB).out == "all files and values have the current columns and versions\n"
    assert statebed("migrate", state, JOB, "--type", "limits=x").code == 2
    missing = statebed("migrate", state, JOB, "--type", "totals.limits=nowhere:Type")
    assert (missing.code, "cannot import the type 'nowhere:Type'" in missing.err) == (1, True)
    plain = statebed("migrate", state, JOB, "--type", "totals.limits=builtins:int")
    assert (plain.code, "does not define how to migrate" in plain.err) == (1, True)


def test_gc_says_what_would_go_and_removes_it(statebed: Call, state: str, job: MaintainedJob) -> None:
    left = names.data_file(4, "totals", "counts", 0, "0" * 32)
    job.store.put(left, b"left")
    listed = statebed("gc", state, JOB, "--dry-run", "--grace", "0 seconds")
    assert listed.code == 0
    assert left in listed.out
    assert "not referenced by any record" in listed.out
    assert listed.out.endswith("would remove 1 object, 4 B\n")
    (found,) = documents(statebed("gc", state, JOB, "--dry-run", "--grace", "0 seconds", "--json").out)
    assert (found["path"], found["size"]) == (left, 4)
    assert job.store.head(left) is not None
    removed = statebed("gc", state, JOB, "--offline", "--yes", "--grace", "0 seconds")
    assert removed.out == "removed 0 records, 1 other object\n"
    assert job.store.head(left) is None
    assert statebed("gc", state, JOB, "--dry-run", "--grace", "soon").code == 1


# ---- asking --------------------------------------------------------------------------------------------------------


class Terminal:
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("answer", [True, False])
def test_people_at_a_terminal_are_asked(
    statebed: Call, live: MaintainedJob, monkeypatch: pytest.MonkeyPatch, answer: bool
) -> None:
    asked: list[str] = []

    def confirm(question: str, *, err: bool) -> bool:
        asked.append(question)
        return answer

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr(typer, "confirm", confirm)
    outcome = statebed("stop", live.disk.url, JOB, "--offline")
    assert "ends with exit code 86" in asked[0]
    assert outcome.code == (0 if answer else 1)
    if not answer:
        assert outcome.err == "nothing was changed\n"
        live.epoch()  # nothing fenced it


COMMANDS = [
    ["verify"],
    ["repair"],
    ["savepoint", "create", "monday"],
    ["savepoint", "drop", "monday"],
    ["savepoint", "list"],
    ["clone", "copy"],
    ["rescale", "2"],
    ["compact"],
    ["migrate"],
    ["gc"],
    ["stop"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_job_that_is_not_there_is_an_error_of_every_command(statebed: Call, state: str, words: list[str]) -> None:
    name = 2 if words[0] == "savepoint" else 1
    outcome = statebed(*words[:name], state, "nothing", *words[name:])
    assert outcome.code == 1
    assert "JOB_NOT_FOUND" in outcome.err


@pytest.mark.parametrize(
    "words", [["verify"], ["repair"], ["savepoint", "list"], ["migrate"], ["gc", "--dry-run"]], ids=" ".join
)
def test_the_only_job_of_a_location_needs_no_name(statebed: Call, state: str, words: list[str]) -> None:
    name = 2 if words[0] == "savepoint" else 1
    assert statebed(*words[:name], state, *words[name:]).code == 0


def test_an_epoch_and_a_savepoint_together_are_wrong_usage(statebed: Call, state: str) -> None:
    assert statebed("verify", state, JOB, "--epoch", "3", "--savepoint", "monday").code == 2


def test_numbers_that_follow_each_other_are_a_range() -> None:
    assert numbers([1, 2, 4, 6, 7, 8]) == "1-2, 4, 6-8"
    assert numbers(list(range(0, 40, 2))).endswith("22, and 8 more")
