"""Errors name what exists instead, and what to do. No traceback, nothing on standard output."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Call

from statebed.format import names

NOBODY = 65534
CASES = [
    (["show", "STATE", "ridez"], "JOB_NOT_FOUND", ["jobs here: rides", "did you mean 'rides'?"]),
    (["show", "STATE", "taxis"], "JOB_NOT_FOUND", ["jobs here: rides", "statebed ls"]),
    (["ls", "STATE", "a/b"], "INVALID_NAME", ["letters"]),
    (["show", "STATE", "rides", "99"], "EPOCH_NOT_RETAINED", ["epochs 1 to 5 are retained"]),
    (["state", "STATE", "-o", "earned", "--epoch", "99"], "EPOCH_NOT_RETAINED", ["epochs 1 to 5 are retained"]),
    (["diff", "STATE", "rides", "99"], "EPOCH_NOT_RETAINED", ["epochs 1 to 5 are retained"]),
    (["show", "STATE", "-o", "earnd"], "STATE_NOT_FOUND", ["per_minute, busiest, earned", "did you mean 'earned'?"]),
    (["state", "STATE", "-o", "earnd"], "STATE_NOT_FOUND", ["earned"]),
    (["get", "STATE", "rides", "x", "-o", "earnd"], "STATE_NOT_FOUND", ["earned.groups"]),
    (["export", "STATE", "rides", "NEW", "-o", "earnd"], "STATE_NOT_FOUND", ["earned.groups"]),
    (["state", "STATE", "-o", "earned", "-t", "x"], "STATE_NOT_FOUND", ["groups"]),
    (["state", "STATE"], "INPUT", ["per_minute.partials, busiest.kept, earned.groups", "--operator"]),
    (["state", "STATE", "-o", "earned", "--savepoint", "x"], "SAVEPOINT", ["monday"]),
    (["show", "STATE", "--savepoint", "x"], "SAVEPOINT", ["monday"]),
    (["diff", "STATE", "rides", "sunday"], "SAVEPOINT", ["monday"]),
    (["state", "STATE", "-o", "earned", "--where", "totl > 1"], "INPUT", ["did you mean 'total'?"]),
    (["state", "STATE", "-o", "earned", "--where", "total >"], "INPUT", ["total >", "a value is expected"]),
    (["state", "STATE", "-o", "earned", "-c", "a,b"], "INPUT", ["driver"]),
    (["state", "STATE", "-o", "per_minute", "--from", "yesterday"], "INPUT", ["2024-05-31 12:00"]),
    (["state", "STATE", "-o", "busiest", "-k", "1"], "INPUT", ["no key", "--where"]),
    (["state", "STATE", "-o", "earned", "-k", "city=1", "-k", "driver=2", "-k", "x=3"], "", []),
    (["ls", "STATE/nothing"], "INPUT", ["does not exist", "state="]),
    (["ls", "STATE/rides/checkpoints/000000000002/checkpoint.metadata"], "INPUT", ["is a file"]),
    (["state", "STATE/rides"], "INPUT", ["folder of a job", "pass its parent folder"]),
    (["top", "STATE/rides"], "INPUT", ["folder of a job"]),
    (["state", "EMPTY"], "JOB_NOT_FOUND", ["no job has state here"]),
    (["ls", "http://x"], "UNKNOWN_SCHEME", ["s3://"]),
    (["ls", "s3://key:s3cr3t@bucket/x"], "SECRET_IN_URL", []),
]


@pytest.mark.parametrize("case", CASES, ids=[" ".join(case[0]) for case in CASES])
def test_errors_say_what_there_is_and_what_to_do(
    statebed: Call, saved: Path, tmp_path: Path, case: tuple[list[str], str, list[str]]
) -> None:
    arguments, code, words = case
    given = [
        word.replace("STATE", str(saved)).replace("EMPTY", str(tmp_path)).replace("NEW", str(tmp_path / "new"))
        for word in arguments
    ]
    told = statebed(*given)
    assert "Traceback" not in told.err
    assert "s3cr3t" not in told.err
    if not code:  # not an error: a key that does not exist
        assert (told.code, told.err) == (0, "")
        return
    assert (told.code, told.out) == (1, "")
    assert f"[{code}]" in told.err
    for word in words:
        assert word in told.err
    assert "what to do: " in told.err or "^" in told.err, "an expression is shown with its place"


def test_several_jobs_are_listed_where_one_must_be_chosen(statebed: Call, saved: Path, tmp_path: Path) -> None:
    for name in ("rides", "taxis"):
        (tmp_path / name).symlink_to(saved / "rides")
    told = statebed("top", tmp_path, "--once")
    assert told.code == 1
    assert "several jobs have state here: rides, taxis" in told.err


def test_a_damaged_record_is_named_by_every_command_that_needs_it(statebed: Call, saved: Path, tmp_path: Path) -> None:
    copied = tmp_path / "state"
    subprocess.run(["cp", "-r", str(saved), str(copied)], check=True)
    record = copied / "rides" / names.record(5)
    record.write_bytes(record.read_bytes()[:-1])
    for arguments in (["show"], ["state", "-o", "earned"], ["top", "--once"]):
        told = statebed(arguments[0], copied, "rides", *arguments[1:])
        assert told.code == 1
        assert "[CORRUPT_RECORD]" in told.err
        assert str(record) in told.err
    assert statebed("show", copied, "rides", "4").code == 0, "older epochs can be looked at"
    assert statebed("ls", copied, "rides").code == 0


def test_a_folder_that_may_not_be_read_is_told(statebed: Call, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    assert statebed("ls", closed).code == 0, "and everything is imported that root alone may read"
    closed.chmod(0o000)
    mine = os.geteuid()
    try:
        if mine == 0:  # root may read everything
            os.seteuid(NOBODY)
        told = statebed("ls", closed)
    finally:
        os.seteuid(mine)
        closed.chmod(0o700)
    assert (told.code, told.out) == (1, "")
    assert str(closed) in told.err
    assert "Traceback" not in told.err


@pytest.mark.parametrize(
    ("arguments", "package", "extra"),
    [
        (["state", "STATE", "-o", "earned", "--sql", "SELECT 1"], "duckdb", "duckdb"),
        (["ui", "STATE"], "starlette", "ui"),
    ],
)
def test_a_missing_extra_is_told_with_the_pip_command(
    saved: Path, arguments: list[str], package: str, extra: str
) -> None:
    program = (
        "import importlib.util as u, sys; real = u.find_spec;"
        f"u.find_spec = lambda name, *rest: None if name == {package!r} else real(name, *rest);"
        "from statebed.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    given = [word.replace("STATE", str(saved)) for word in arguments]
    done = subprocess.run(
        [sys.executable, "-c", program, *given], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "[MISSING_DEPENDENCY]" in done.stderr
    assert f"pip install 'statebed[{extra}]'" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["state", "s", "--limit", "x"],
        ["state", "s", "--epoch", "1", "--savepoint", "x"],
        ["state", "s", "--count", "--scan"],
        ["state", "s", "--count", "--sql", "SELECT 1"],
        ["state", "s", "--format", "xml"],
        ["get", "s", "j"],
        ["get", "s", "j", "k", "--epoch", "1", "--savepoint", "x"],
        ["diff", "s", "j"],
        ["export", "s", "j"],
        ["export", "s", "j", "o", "--epoch", "1", "--savepoint", "x"],
        ["show", "s", "j", "1", "--savepoint", "x"],
        ["ls", "s", "j", "--runs", "--lineages"],
        ["ls", "s", "--before", "3"],
        ["ls", "s", "j", "--limit", "-1"],
        ["top", "s", "--every", "0"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2_before_anything_is_read(statebed: Call, arguments: list[str]) -> None:
    assert statebed(*arguments).code == 2
