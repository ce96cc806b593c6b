"""Time and memory per epoch are flat, however many epochs there were: the driver keeps nothing of each."""

import pytest
from simulation.many_epochs import Figures, measure


def check_flat(figures: Figures) -> None:
    """The last windows cost what the first ones did; the very first is not counted, caches fill in it."""
    first, last = figures.driver_bytes[1:3], figures.driver_bytes[-2:]
    assert max(last) < 1.25 * max(first), figures
    assert max(figures.entries) <= 200, figures
    assert min(figures.seconds[-3:]) < 1.5 * min(figures.seconds[1:4]), figures


def test_p5_time_and_memory_of_an_epoch_do_not_grow_with_their_number() -> None:
    check_flat(measure(3_000, window=250))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_p5_time_and_memory_of_an_epoch_do_not_grow_over_100_000() -> None:
    check_flat(measure(100_000, window=1_000))
