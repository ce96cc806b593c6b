"""Time and memory per epoch are flat, however many epochs there were: the driver keeps nothing of each."""

from statistics import median

import pytest
from simulation.many_epochs import Figures, measure

ROOT_BYTES = 40_000
"""Two tables' references to pages: up to 32 of each level, however many pages there are."""


def check_flat(figures: Figures) -> None:
    """The last windows cost what the first ones did; the very first is not counted, caches fill in it."""
    assert max(figures.driver_bytes[-2:]) < max(figures.driver_bytes[1:3]) + ROOT_BYTES, figures
    assert max(figures.entries) <= 200, figures
    assert min(figures.seconds[-4:]) < 1.5 * median(figures.seconds[1:5]), figures


def test_p5_time_and_memory_of_an_epoch_do_not_grow_with_their_number() -> None:
    check_flat(measure(600, window=50))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_p5_time_and_memory_of_an_epoch_do_not_grow_over_100_000() -> None:
    check_flat(measure(100_000, window=1_000))
