"""bench: runs what a checkout has, and says where the benchmarks are when there are none."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from statebed.cli import bench, main
from statebed.cli.pack import pack_code

ROOT = Path(__file__).resolve().parents[3]


def test_the_benchmarks_of_the_checkout_are_run_and_their_exit_code_is_ours(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "engine", "--quick", "--case", "no such case"]) == 2
    assert "int64 uniform" in "".join(capfd.readouterr())


def test_only_a_checkout_of_statebed_counts(tmp_path: Path) -> None:
    assert bench.find(tmp_path) is None
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "__main__.py").write_text("raise SystemExit('another one')")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "other"\n')
    assert bench.find(tmp_path) is None
    assert bench.find(tmp_path, ROOT) == ROOT


def test_an_installed_statebed_says_where_the_benchmarks_are(tmp_path: Path) -> None:
    archive = pack_code(tmp_path / "statebed.zip").path
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(tmp_path / "site")
    done = subprocess.run(
        [sys.executable, "-m", "statebed.cli", "bench", "engine"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "site"), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 1
    assert "source distribution" in done.stderr
    assert "make bench" in done.stderr
