"""Reports of the end of the job's process: its own error, and its own exit code where it was superseded."""

import sys
from pathlib import Path

import pytest

from statebed.demo.child import run_job
from statebed.demo.job import DemoFolder
from statebed.errors import FENCED_EXIT_CODE, DemoError, FencedError

JAVA = "        at org.apache.spark.Something.call(Something.scala:87)\n" * 20
ERROR = "[REPLAY] Spark's checkpoint and the state log disagree\n  where: job nexmark\n"


def run_instead(program: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = folder / "python"
    script.write_text(f"#!{sys.executable}\n{program}\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    run_job(DemoFolder(folder), kill_when=lambda _: False, poll_seconds=0.01)


def test_p3_a_job_that_was_superseded_ends_the_demo_with_the_same_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FencedError, match="another demo was started") as raised:
        run_instead("raise SystemExit(86)", tmp_path, monkeypatch)
    assert raised.value.exit_code == FENCED_EXIT_CODE == 86


def test_an_error_of_ours_is_told_without_what_spark_printed_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DemoError) as raised:
        run_instead(f"import sys; sys.stderr.write({JAVA + ERROR!r}); sys.exit(1)", tmp_path, monkeypatch)
    assert "[REPLAY] Spark's checkpoint" in raised.value.what
    assert "where: job nexmark" in raised.value.what
    assert "Something.scala" not in raised.value.what
    assert raised.value.where == str(tmp_path / "job.log")


def test_the_last_lines_are_told_where_no_error_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DemoError, match="exit code 3") as raised:
        run_instead("print('\\n'.join(map(str, range(100)))); raise SystemExit(3)", tmp_path, monkeypatch)
    assert raised.value.what.split()[-1] == "99"
    assert " 50\n" not in raised.value.what
