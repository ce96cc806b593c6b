"""`statebed migrate` acts at once where the job's run has ended, and requires --offline where it may be live."""

import sys
from pathlib import Path

import pytest
from command_line import Call
from maintained_job import JOB
from unit.maintain import test_migrating
from unit.maintain.test_migrating import RiderV2, riders_in, stored_riders

from statebed.checkpoint.run_status import put_end
from statebed.format import checkpoint_pb2 as pb
from statebed.storage import LocalStore, ScopedStore

TYPE = "riders.riders=riders_of_today:RiderV2"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ScopedStore:
    monkeypatch.setitem(sys.modules, "riders_of_today", test_migrating)
    return ScopedStore(LocalStore(tmp_path), JOB)


def test_values_of_an_ended_job_are_migrated_without_a_question(
    statebed: Call, store: ScopedStore, tmp_path: Path
) -> None:
    log = stored_riders(store)
    refused = statebed("migrate", tmp_path, JOB, "--type", TYPE)
    assert refused.code == 1
    assert "stop the job first" in refused.err
    put_end(store, pb.RunEnd(run=1, outcome=pb.RUN_FAILED, epoch=2))
    done = statebed("migrate", tmp_path, JOB, "--type", TYPE)
    assert (done.code, done.err) == (0, "")
    assert "migrated: record 4 of run 3" in done.out
    assert riders_in(log, RiderV2, 2)["grace"] == RiderV2("grace", trips=5)
    assert "the current columns and versions" in statebed("migrate", tmp_path, JOB, "--type", TYPE).out
