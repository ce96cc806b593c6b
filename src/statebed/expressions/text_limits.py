"""Limits on texts that an expression makes, checked before memory is taken for them.

A few characters of SQL can ask for any amount of text: `lpad(k, 2000000000, 'x')`, or a `replace` that makes every
character a thousand. Arrow's own limit is 2 GiB per column, and is met only when the memory is taken.
"""

import pyarrow as pa
import pyarrow.compute as pc

from statebed.expressions.mistakes import RowFailure

MOST_PADDED = 1 << 20
"""Characters to which `lpad` and `rpad` may bring a text."""
MOST_BYTES = 1 << 30
"""Bytes of the texts that one function gives for the rows of one batch."""
_MIB = 1 << 20


def check_size(nbytes: int, rows: int) -> None:
    """Refuse a result of more than `MOST_BYTES`."""
    if nbytes > MOST_BYTES:
        raise RowFailure(
            f"a result of {nbytes // _MIB:,} MiB of text for {rows:,} rows, above the limit of {MOST_BYTES // _MIB:,} "
            "MiB",
            fix="make shorter texts, or leave rows out before with where(...)",
        )


def text_bytes(texts: pa.Array) -> int:
    """Bytes of the texts of an array."""
    return pc.sum(pc.binary_length(texts)).as_py() or 0
