"""A real Spark Connect session is refused at once, with what to do. Runs in `make test-versions`, which installs it."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("grpc_status") is None, reason="the client of Spark Connect is not installed"
)


def test_every_way_to_begin_a_job_with_a_connect_session_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    state = tmp_path / "state"
    program = Path(__file__).with_name("connect_client.py")
    done = subprocess.run(
        [sys.executable, program, state], cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    printed = json.loads(done.stdout.splitlines()[-1])
    assert printed["session"] == "pyspark.sql.connect.session"
    assert printed["rows"] == 3
    assert set(printed["errors"]) == {"Job(spark=...)", "Job().source(df)", "stream(df)", "write_stream(df)"}
    for way, error in printed["errors"].items():
        assert "this is a Spark Connect session" in error, way
        assert "SparkSession.builder.master" in error, way
    assert not state.exists()
