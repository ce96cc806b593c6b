"""Fixtures that tests of several folders share; each is created when it is first requested."""

import gc
import os

import pytest
from effort import examples
from hypothesis import settings
from hypothesis.internal.conjecture import engine, providers
from slow import slow_tests

pytest_plugins = ("s3.server", "postgres.server", "kafka.server")

# A shared machine is slow at times, which is no failure. CI must give the same answer for the same commit;
# other runs look for new examples.
EXAMPLES = examples(50)
"""Examples of property tests that set no number of their own."""
settings.register_profile("local", deadline=None, max_examples=EXAMPLES)
settings.register_profile("ci", deadline=None, derandomize=True, max_examples=EXAMPLES)
settings.load_profile("ci" if os.environ.get("CI") else "local")
# Hypothesis would look for a smaller example until pytest's time-out ends the test, and so hide the failure it found.
engine.MAX_SHRINKING_SECONDS = 60
# It would also parse every loaded module for constants to try. That takes seconds of each process, and the examples of
# all tests would change with any module.
providers._get_local_constants = lambda: providers._local_constants

# Garbage is collected rarely, from the first import on: it took a tenth of the processor time.
gc.set_threshold(50_000, 10, 10)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the slow tests before `-m` looks at marks."""
    names = slow_tests()
    for item in items:
        if getattr(item, "originalname", item.name) in names:
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Leave modules and collected tests out of the collection of garbage."""
    gc.collect()
    gc.freeze()
