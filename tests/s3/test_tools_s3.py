"""Verification, repair and the changing tools on a real S3 server, beside a job that writes."""

import pytest
from maintained_job import JOB, maintained_job
from unit.maintain.test_beside_a_writer import check_beside_a_writer

from statebed.checkpoint import CheckpointLog
from statebed.format import names
from statebed.inspect.verification import DamageKind, verify_log
from statebed.maintain import (
    Through,
    compact_offline,
    create_savepoint,
    find_garbage,
    plan_repair,
    remove_garbage,
    repair,
    rescale_offline,
)
from statebed.storage import ObjectStore

pytestmark = pytest.mark.s3


def test_p5_tools_find_a_job_on_s3_whole_while_it_writes_and_collects(s3_store: ObjectStore) -> None:
    check_beside_a_writer(s3_store, turns=1)


def test_p7_a_damaged_and_a_missing_file_on_s3_are_named_and_the_job_is_brought_back(s3_store: ObjectStore) -> None:
    with maintained_job(disk=s3_store) as job:
        job.open()
        for _ in range(3):
            job.epoch()
        log = CheckpointLog(job.store, JOB, job.environment)
        damaged, missing = [
            next(info.path for info in job.store.list(names.epoch_folder(4)) if part in info.path)
            for part in ("data/totals-counts-0", "data/minutes-orders-1")
        ]
        data = bytearray(job.store.get(damaged))
        data[40] ^= 1
        job.store.put(damaged, bytes(data))
        job.store.delete(missing)
        found = verify_log(log)
        assert {one.path: one.trouble for one in found.findings} == {
            damaged: DamageKind.DAMAGED,
            missing: DamageKind.MISSING,
        }
        plan = plan_repair(log, found)
        assert (plan.base, plan.lost) == (3, (4,))
        assert repair(log, plan) is not None
        job.open()
        assert job.read(job.run.head) == job.states[3]


def test_state_on_s3_is_saved_re_assigned_merged_and_cleaned_up(s3_store: ObjectStore) -> None:
    with maintained_job(disk=s3_store) as job:
        job.open()
        for _ in range(3):
            job.epoch()
        log = CheckpointLog(job.store, JOB, job.environment)
        create_savepoint(log, "monday", through=Through.OWN_RUN)
        assert rescale_offline(log, 3) is not None
        job.parallelism = 3
        assert compact_offline(log).changed is not None
        job.store.put(names.data_file(3, "totals", "counts", 0, "0" * 32), b"of an attempt that failed")
        assert len(find_garbage(log, grace_us=0)) == 1
        remove_garbage(log, through=Through.OWN_RUN, grace_us=0)
        assert find_garbage(log, grace_us=0) == []
        assert verify_log(log).whole
        job.open()
        assert job.read(job.run.head) == job.states[4]
