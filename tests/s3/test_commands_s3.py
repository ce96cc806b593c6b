"""The commands that look, at a job whose state is on a real S3 server."""

import json
from pathlib import Path
from typing import Any

import dashboard_jobs
import pytest
from s3.server import S3Server

from statebed.checkpoint import Run
from statebed.cli import main
from statebed.format import checkpoint_pb2 as pb
from statebed.inspect import read_state
from statebed.storage import ObjectStore

pytestmark = pytest.mark.s3


class Shell:
    """Commands with the credentials in the environment, as a user has them."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> str:
        code = main(list(arguments))
        shown = self._capsys.readouterr()
        assert code == 0, shown.err
        return shown.out

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))


@pytest.fixture
def shell(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return Shell(capsys)


def test_a_job_on_s3_is_looked_at_with_every_command(
    shell: Shell, s3_store: ObjectStore, s3_url: str, tmp_path: Path
) -> None:
    with dashboard_jobs.written(s3_store) as writer:
        writer.epochs(2)
        live: Run = writer.run._cluster.run
        live.add_request(pb.Request(savepoint=pb.SavepointRequest(name="monday")))
        writer.epochs(2)
        # The job is still there: nothing below waits for it or is refused by it.
        [job] = shell.json("ls", s3_url)
        assert (job["job"], job["head"], job["savepoints"]) == ("rides", 5, 1)
        assert job["bytes"] > 0
        assert [epoch["epoch"] for epoch in shell.json("ls", s3_url, "rides", "-n", "2")] == [4, 5]
        assert [one["savepoint"] for one in shell.json("ls", s3_url, "rides", "--savepoints")] == ["monday"]
        assert [one["status"] for one in shell.json("ls", s3_url, "rides", "--lineages")] == ["current"]
        shown = shell.json("show", s3_url, "rides", "--needed-by", "--schema")
        assert {table["tier"] for table in shown["tables"]} == {"object store"}
        assert all(5 in file["epochs"] for file in shown["files"])
        expected = read_state(s3_url, operator="earned").to_arrow()
        rows = shell.json("state", s3_url, "-o", "earned", "-n", "0")["rows"]
        assert [row["driver"] for row in rows] == expected["driver"].to_pylist()
        [row] = shell.json("state", s3_url, "-o", "earned", "--sql", "SELECT count(*) AS n FROM state")["rows"]
        assert row["n"] == expected.num_rows
        key = expected["driver"][0].as_py()
        found = shell.json("get", s3_url, "rides", key)
        assert key in {row["driver"] for table in found["tables"] for row in table["rows"]}
        assert shell.json("diff", s3_url, "rides", "monday")["until"] == 5
        assert shell.json("diff", s3_url, "rides", "monday", "-o", "earned")["counts"]["update_after"] > 0
        [exported] = shell.json("export", s3_url, "rides", str(tmp_path / "earned.parquet"), "-o", "earned")
        assert exported["rows"] == expected.num_rows
        assert shell.json("top", s3_url, "rides")["epoch"] == 5
        writer.epochs(1)
        assert shell.json("top", s3_url, "rides")["epoch"] == 6


def test_a_location_without_a_job_and_a_bucket_that_is_not_there_are_told(
    s3_server: S3Server, s3_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    assert main(["ls", s3_url]) == 0
    assert f"no job has state at {s3_url}" in capsys.readouterr().out
    assert main(["show", s3_url, "rides"]) == 1
    assert "[JOB_NOT_FOUND]" in capsys.readouterr().err
    assert main(["ls", "s3://no-such-bucket-here/state"]) == 1
    assert "[BUCKET_MISSING]" in capsys.readouterr().err
