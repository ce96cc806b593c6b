"""Results of a join by time, sorted by event time, key hash and all columns, in memory that does not grow with them."""

from collections.abc import Sequence

import pyarrow as pa

from statebed.operators.external_sort import ExternalSort
from statebed.operators.joins.pairs import output_order
from statebed.state import TimeKeyedView

_COPIES = 8


class SortedResults(ExternalSort):
    """Collects the results of a step, whose schema is `schema`; `keys` are the key columns of its left input."""

    def __init__(self, schema: pa.Schema, keys: Sequence[str], view: TimeKeyedView) -> None:
        super().__init__(schema, lambda rows: output_order(rows, keys), view, copies=_COPIES)
