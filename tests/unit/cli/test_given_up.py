"""Rows that a start left out of a sink with `skip=`: every view of the job shows them."""

import json
from pathlib import Path

import pytest
from command_line import Call
from dashboard_client import DashboardClient
from unit.checkpoint.place import JOB, MailSink, Place

from statebed.checkpoint import Publisher
from statebed.inspect.given_up import given_up_line
from statebed.protocol.sink_history import GivenUpEpochs
from statebed.storage import LocalStore

LINE = "sink mail lacks 1 rows of epoch 3, which were given up with skip="
"""Line that is shown, whether a record counts the rows yet or not."""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    place = Place()
    run = place.open()
    place.commit(run, sinks=("mail",))
    Publisher(run, [MailSink("mail")]).open()
    place.commit(run, sinks=("mail",))
    Publisher(place.open(), [MailSink("mail")], skip={"mail": 3}).open()
    for path, data in place.contents().items():
        LocalStore(tmp_path).put(path, data)
    return tmp_path


def test_ls_show_positions_and_dashboard_tell_what_a_sink_lacks(statebed: Call, state: Path) -> None:
    assert f"job {JOB}: {LINE}" in statebed("ls", state).out
    assert LINE in statebed("ls", state, JOB).out
    assert LINE in statebed("show", state).out
    shown = statebed("show", state, JOB, "3").out
    assert "given up" in shown
    (job,) = json.loads(statebed("ls", state, "--json").out)
    assert job["given_up"] == [LINE]
    assert json.loads(statebed("show", state, JOB, "3", "--json").out)["sinks"][0]["given_up"]
    assert not json.loads(statebed("show", state, JOB, "2", "--json").out)["sinks"][0]["given_up"]
    client = DashboardClient(state)
    assert LINE in client.get(f"/jobs/{JOB}").text
    assert "given up" in client.get(f"/jobs/{JOB}/epochs/3").text


def test_several_epochs_are_described_by_their_number() -> None:
    assert "1,234 rows of 2 epochs (the newest: 9)" in given_up_line("out", GivenUpEpochs(2, 1234, 9))
