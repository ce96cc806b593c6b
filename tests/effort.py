"""How many examples property tests try.

The usual numbers fit into `make test`; with TEST_EFFORT=10 any target tries ten times as many, as `make test-long`
does.
"""

import os


def examples(usual: int) -> int:
    """Return `usual` times the requested effort."""
    return usual * int(os.environ.get("TEST_EFFORT", "1"))
