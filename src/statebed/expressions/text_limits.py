"""Limits on the texts that an expression builds, checked before memory is allocated for them.

A few characters of SQL can ask for any amount of text: `lpad(k, 2000000000, 'x')`, or a `replace` that turns every
character into a thousand. Arrow's own limit of 2 GiB per column applies only after the memory was allocated.
"""

import pyarrow as pa
import pyarrow.compute as pc

from statebed.expressions.mistakes import RowFailure
from statebed.present.units import binary_size

MAX_PADDED = 1 << 20
"""Maximum length that `lpad` and `rpad` accept, in characters."""
MAX_BYTES = 1 << 30
"""Maximum number of bytes of text that one function returns for one batch."""


def is_small(nbytes: int) -> bool:
    """Return whether a result of at most `nbytes` bytes needs no closer look."""
    return nbytes <= MAX_BYTES


def check_size(nbytes: int, rows: int) -> None:
    """Raise if a result has more than `MAX_BYTES` bytes."""
    if nbytes > MAX_BYTES:
        raise RowFailure(
            f"a result of {binary_size(nbytes)} of text for {rows:,} rows is above the limit of "
            f"{binary_size(MAX_BYTES)}",
            fix="make shorter texts, or leave rows out before with where(...)",
        )


def text_bytes(texts: pa.Array) -> int:
    """Return the number of bytes of the texts in an array."""
    return pc.sum(pc.binary_length(texts)).as_py() or 0
