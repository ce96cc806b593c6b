"""Simulations that take minutes (make test-long): two crashes in a row, and a life of thousands of epochs."""

import contextlib
import random

import pytest
from simulation.test_crash_sweep import check_everything_after_the_crash, operations_of, workload
from simulation.world import World

from statebed.checkpoint import RollbackPolicy
from statebed.testing.faults import Fault, FaultStore, SimulatedCrash

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

PAIRS = 3_000
EPOCHS = 3_000
MAX_OBJECTS = 250


def test_p1_p2_p3_p5_hold_after_a_crash_during_the_recovery_from_a_crash() -> None:
    dice = random.Random(7)
    operations = len(operations_of(World()))
    for _ in range(PAIRS):
        world = World()
        first = dice.randrange(1, operations + 1)
        with pytest.raises(SimulatedCrash):
            workload(world, FaultStore(world.disk, {first: dice.choice([Fault.CRASH_BEFORE, Fault.CRASH_AFTER])}))
        second = FaultStore(world.disk, {dice.randrange(1, 60): dice.choice([Fault.CRASH_BEFORE, Fault.CRASH_AFTER])})
        with pytest.raises(SimulatedCrash):
            recover_and_go_on(world, second)
        check_everything_after_the_crash(world)


def recover_and_go_on(world: World, store: FaultStore) -> None:
    process = world.process(store).open(rollback=RollbackPolicy.ALLOW)
    while True:
        process.epoch("second ")


def test_p5_thousands_of_epochs_with_crashes_keep_a_bounded_number_of_objects() -> None:
    dice = random.Random(11)
    world = World()
    process = world.process().open()
    most = 0
    for number in range(EPOCHS):
        if dice.random() < 0.02:
            store = FaultStore(world.disk, {dice.randrange(1, 40): Fault.CRASH_BEFORE})
            with contextlib.suppress(SimulatedCrash):
                world.process(store).open().epoch("dies ")
            process = world.process().open()
        process.epoch()
        if number % 50 == 0:
            most = max(most, sum(1 for _ in world.disk.list("")))
    assert most < MAX_OBJECTS
    world.check_retained()
    world.check_sinks()
