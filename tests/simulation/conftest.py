"""Fixtures of the simulations."""

import pytest
from simulation.world import World


@pytest.fixture
def world() -> World:
    return World()
