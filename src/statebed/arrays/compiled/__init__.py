"""Loops over rows as machine code, where numba is installed: `pip install 'statebed[fast]'`.

What is hot is done in passes of numpy, each over all rows of a batch. A few steps take many of them: hashing keys,
sorting hashes, finding them in a run, comparing keys. Compiled, each of these is one loop, about twice as fast.
Both ways give the same bits. Numpy's is always there, and the only one in a process that has only small batches, which
does not load the compiler.
"""

import os
import sys
from functools import cache
from types import ModuleType

from statebed.errors import InputError

VARIABLE = "STATEBED_COMPILED"
"""Of the environment: `off` for never, `always` for small batches, too; `auto` as if it were not there."""
_LEAST_ROWS = {"auto": 1 << 12, "always": 1, "off": None}
"""Fewer rows are not worth loading a compiler."""
_LEAST_ROWS_WHEN_LOADED = 1 << 8
"""Fewer rows take no longer without. Each new combination of types is still compiled, once on a machine."""
_LOOPS = "statebed.arrays.compiled.loops"


def loops_for(rows: int) -> ModuleType | None:
    """The module `loops`, for arrays of so many rows; None: use numpy's passes."""
    least = _least_rows()
    if least is not None and _LOOPS in sys.modules:
        least = min(least, _LEAST_ROWS_WHEN_LOADED)
    return None if least is None or rows < least else _loops()


@cache
def _least_rows() -> int | None:
    chosen = os.environ.get(VARIABLE, "auto")
    if chosen not in _LEAST_ROWS:
        raise InputError(
            f"{VARIABLE} is {chosen!r}", where="environment", fix=f"give one of {', '.join(_LEAST_ROWS)}, or unset it"
        )
    return _LEAST_ROWS[chosen]


@cache
def _loops() -> ModuleType | None:
    try:
        from statebed.arrays.compiled import loops  # noqa: PLC0415 - takes a fifth of a second, and numba may be missing
    except ModuleNotFoundError as error:
        if error.name != "numba":
            raise
        return None
    return loops if loops.ENABLED else None
