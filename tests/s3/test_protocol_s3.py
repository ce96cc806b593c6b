"""The commit protocol on a real S3 server: one winner of twenty, and a whole life of a job with crashes in it."""

import pytest
from simulation.racing import CONTENDERS, race_to_commit, race_to_open
from simulation.test_crash_sweep import check_everything_after_the_crash, operations_of, workload
from simulation.world import World

from statebed.checkpoint import EpochDraft
from statebed.storage import ObjectStore
from statebed.testing.faults import Fault, FaultStore, SimulatedCrash

pytestmark = pytest.mark.s3


def test_p3_of_20_runs_opened_at_once_one_wins(s3_store: ObjectStore) -> None:
    won, lost = race_to_open(s3_store)
    assert (len(won), len(lost)) == (1, CONTENDERS - 1)
    assert won[0].commit(EpochDraft(operators=[])).run == won[0].number


def test_p3_of_20_concurrent_commits_of_one_epoch_one_wins(s3_store: ObjectStore) -> None:
    number, won, lost = race_to_commit(s3_store)
    assert (won, len(lost)) == ([number], CONTENDERS - 1)


def test_p1_p2_p3_p5_hold_on_s3_after_a_crash_in_mid_life(s3_store: ObjectStore) -> None:
    middle = len(operations_of(World())) // 2
    world = World(disk=s3_store)
    with pytest.raises(SimulatedCrash):
        workload(world, FaultStore(s3_store, {middle: Fault.CRASH_AFTER}))
    check_everything_after_the_crash(world)
