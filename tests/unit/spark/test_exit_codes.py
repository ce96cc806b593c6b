"""Output of a program with `sb.exit_codes()` at its end."""

import sys

import pytest

import statebed as sb
from statebed.spark.api import exit_codes


def test_the_error_is_printed_after_all_that_spark_prints_at_its_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(exit_codes, "stop_spark", lambda: sys.stderr.write("noise of Spark\n"))
    with pytest.raises(SystemExit) as end, sb.exit_codes():
        raise sb.InputError("the key is missing", fix="add it") from KeyError("cell")
    lines = capsys.readouterr().err.splitlines()
    assert end.value.code == sb.InputError.exit_code
    assert lines[0] == "noise of Spark"
    assert lines[1:] == ["KeyError: 'cell'", "[INPUT] the key is missing", "  what to do: add it"]
