"""Verification and the changing tools beside a job that writes, collects and moves on all the time."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from maintained_job import JOB, MaintainedJob, maintained_job

from statebed.checkpoint import CheckpointLog, Environment
from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.verification import OrphanKind, verify_log
from statebed.maintain import Through, create_savepoint, drop_savepoint, find_garbage, list_savepoints, plan_repair
from statebed.storage import LocalStore, MemoryStore, ObjectStore

TURNS = 3


@contextmanager
def writing(disk: ObjectStore) -> Iterator[MaintainedJob]:
    """A live run that commits, publishes, merges, serves requests and collects without a pause."""
    with maintained_job(disk=disk, retained=2) as job:
        job.open()
        job.epoch()
        ended, failed = threading.Event(), []

        def write() -> None:
            try:
                while not ended.is_set():
                    job.run.serve_requests()
                    job.epoch(edits=job.merged() if job.run.head.epoch % 3 == 0 else None)
                    job.run.clean_up()
            except BaseException as error:  # noqa: BLE001 - told to the test
                failed.append(error)

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        try:
            yield job
        finally:
            ended.set()
            thread.join(60)
        assert not failed, failed


@pytest.mark.parametrize("kind", [pytest.param("memory", marks=pytest.mark.long), "local"])
def test_p5_tools_find_a_job_whole_while_it_writes_and_collects(
    kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    disk = MemoryStore() if kind == "memory" else LocalStore(tmp_path_factory.mktemp("state"))
    check_beside_a_writer(disk, turns=TURNS)


def check_beside_a_writer(disk: ObjectStore, *, turns: int) -> None:
    with writing(disk) as job:
        log = CheckpointLog(job.store, JOB, Environment())
        first = (log.head() or pb.CheckpointMetadata()).epoch
        for turn in range(turns):
            create_savepoint(log, f"turn{turn}", through=Through.LIVE_RUN, timeout_s=60)
            found = verify_log(log)
            assert found.findings == ()
            assert f"turn{turn}" in found.savepoints
            assert {one.kind for one in found.orphans} <= {OrphanKind.UNFINISHED, OrphanKind.GARBAGE}
            assert not plan_repair(log, found).needed
            assert verify_log(log, savepoint=f"turn{turn}").whole
            find_garbage(log, grace_us=0)
            assert [one.name for one in list_savepoints(log)] == [f"turn{turn}"]
            drop_savepoint(log, f"turn{turn}", through=Through.LIVE_RUN, timeout_s=60)
        assert (log.head() or pb.CheckpointMetadata()).epoch > first + 2 * turns
