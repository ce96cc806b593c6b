"""Lines have ids as fields, and may be written as JSON."""

import json
import logging
import subprocess
import sys

import pytest

from statebed.errors import InputError
from statebed.logs import FIELDS, JsonFormatter, id_logger


def formatted(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    return [json.loads(JsonFormatter().format(record)) for record in caplog.records]


def test_ids_of_a_logger_and_of_a_line_are_fields_of_its_record(caplog: pytest.LogCaptureFixture) -> None:
    told = id_logger("statebed.some", job="rides").about(run=3)
    with caplog.at_level(logging.INFO, "statebed"):
        told.info("epoch %d is here", 7, extra={"epoch": 7})
    [record] = caplog.records
    assert (record.__dict__["job"], record.__dict__["run"], record.__dict__["epoch"]) == ("rides", 3, 7)
    [line] = formatted(caplog)
    assert line["message"] == "epoch 7 is here"
    assert {name: line[name] for name in FIELDS if name in line} == {"job": "rides", "run": 3, "epoch": 7}
    assert line["level"] == "info"
    assert str(line["time"]).endswith("+00:00")


def test_an_error_is_told_with_its_code_and_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise InputError("it is wrong", where="here", fix="mend it")  # noqa: TRY301 - for its traceback
    except InputError:
        id_logger("statebed.some").exception("stopped")
    [line] = formatted(caplog)
    assert line["error"] == {
        "type": "InputError",
        "code": InputError.code,
        "what": "it is wrong",
        "where": "here",
        "fix": "mend it",
    }
    assert "Traceback" in str(line["traceback"])


def test_a_line_stays_one_line_whatever_is_in_it(caplog: pytest.LogCaptureFixture) -> None:
    id_logger("statebed.some", job='ri"des\n').warning("two\nlines and <b> \u202e")
    text = JsonFormatter().format(caplog.records[0])
    assert "\n" not in text
    assert json.loads(text)["job"] == 'ri"des\n'


def test_the_library_installs_no_handler() -> None:
    code = (
        "import logging, statebed, statebed.spark; print(logging.getLogger('statebed').handlers, logging.root.handlers)"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert printed == "[] []\n"
