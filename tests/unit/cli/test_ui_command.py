"""`statebed ui`: where it listens, what it says, and how it fails."""

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from statebed.cli import main

COMMAND = [sys.executable, "-m", "statebed.cli", "ui"]


def test_it_tells_its_address_serves_there_and_ends_with_ctrl_c(rides: Path, tmp_path: Path) -> None:
    said = tmp_path / "said"
    with said.open("wb") as output:
        process = subprocess.Popen([*COMMAND, str(rides), "--no-open", "--port", "0", "--json"], stdout=output)
    try:
        deadline = time.monotonic() + 60
        while not said.read_text().endswith("}\n") and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.05)
        found = json.loads(said.read_text())
        assert found["state"] == str(rides)
        assert found["url"].startswith("http://127.0.0.1:")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(found["url"] + "jobs/rides", timeout=30) as answer:
            assert b"per_minute" in answer.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
    finally:
        process.kill()
        process.wait(timeout=20)


def test_a_port_that_is_taken_is_an_error_that_says_what_to_do(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code = main(["ui", str(tmp_path), "--no-open", "--port", str(taken.getsockname()[1])])
    assert code == 1
    assert "--port" in capfd.readouterr().err


def test_another_host_than_loopback_is_warned_of(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = main(["ui", str(tmp_path), "--no-open", "--host", "192.0.2.1"])  # an address that no machine has
    assert code == 1
    said = capfd.readouterr().err
    assert "no password" in said
    assert "cannot listen on 192.0.2.1" in said


def test_a_location_that_cannot_be_is_refused_before_anything_is_served(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["ui", "gopher://somewhere", "--no-open"]) == 1
    assert "UNKNOWN_SCHEME" in capfd.readouterr().err
