"""What tests of several folders share; fixtures are made when they are first asked for."""

import os

from hypothesis import settings
from hypothesis.internal.conjecture import engine

pytest_plugins = ("s3.server", "postgres.server")

# A shared machine is slow at times, which is no failure. CI must give the same answer for the same commit;
# other runs look for new examples.
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")
# Hypothesis would look for a smaller example until pytest's time-out ends the test, and so hide the failure it found.
engine.MAX_SHRINKING_SECONDS = 60
