"""Compiled loops over rows, if numba is installed: `pip install 'statebed[fast]'`.

Hot code runs in passes of numpy, each over all rows of a batch. A few steps need many passes: hashing keys, finding
them in a run, comparing them, merging runs. Compiled, each of these is one loop, about twice as fast. Both ways have
identical results. Numpy is always available, and a process that has only small batches does not load the compiler.
"""

import os
import sys
from functools import cache
from types import ModuleType

from statebed.errors import InputError

VARIABLE = "STATEBED_COMPILED"
"""Environment variable: `off` for never, `always` also for small batches, `auto` is the default."""
_MIN_ROWS = {"auto": 1 << 12, "always": 1, "off": None}
"""Minimum number of rows for which loading the compiler is worthwhile."""
_MIN_ROWS_WHEN_LOADED = 1 << 8
"""Minimum number of rows once the compiler is loaded. Each combination of types is compiled once per machine."""
_LOOPS = "statebed.arrays.compiled.loops"


def loops_for(rows: int) -> ModuleType | None:
    """Return the module `loops` for arrays of `rows` rows, or None if numpy should be used."""
    min_rows = _min_rows()
    if min_rows is not None and _LOOPS in sys.modules:
        min_rows = min(min_rows, _MIN_ROWS_WHEN_LOADED)
    return None if min_rows is None or rows < min_rows else _loops()


@cache
def _min_rows() -> int | None:
    chosen = os.environ.get(VARIABLE, "auto")
    if chosen not in _MIN_ROWS:
        raise InputError(
            f"{VARIABLE} is {chosen!r}", where="environment", fix=f"give one of {', '.join(_MIN_ROWS)}, or unset it"
        )
    return _MIN_ROWS[chosen]


@cache
def _loops() -> ModuleType | None:
    try:
        from statebed.arrays.compiled import loops  # noqa: PLC0415 - takes a fifth of a second, and numba may be missing
    except ModuleNotFoundError as error:
        if error.name != "numba":
            raise
        return None
    return loops if loops.ENABLED else None
