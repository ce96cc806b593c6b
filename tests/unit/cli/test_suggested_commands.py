"""The commands that the demo suggests can be pasted into a shell, whatever its folder is called."""

import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from statebed.cli.demo_next import suggestions
from statebed.demo.job import DemoFolder


@pytest.mark.parametrize("name", ["demo", "my demo's", 'a "quoted" $HOME `x`!'])
def test_the_query_over_the_results_runs_in_a_shell(tmp_path: Path, name: str) -> None:
    folder = DemoFolder(tmp_path / name)
    part = folder.results / "epoch=000000000002"
    part.mkdir(parents=True)
    pq.write_table(pa.table({"auction": [7, 7, 8], "bids": [1000, 234, 5]}), part / "a.parquet")
    [query] = [one.command for one in suggestions(folder) if "duckdb" in one.command]
    done = subprocess.run(["bash", "-c", query], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "1234" in done.stdout


def test_no_query_is_suggested_before_there_is_a_result_or_state(tmp_path: Path) -> None:
    commands = [one.command.split("statebed ")[-1].split()[0] for one in suggestions(DemoFolder(tmp_path))]
    assert commands == ["ls", "show", "verify", "ui", "demo", "demo"]
