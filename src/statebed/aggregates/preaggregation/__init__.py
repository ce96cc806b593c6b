"""Pre-aggregated input: values computed for each group before the rows arrive, and the partials made of them.

A Spark job can aggregate rows in the JVM, where they are, and send one row per group instead. It computes *parts*:
plain counts, sums and extremes that do not depend on the order of rows. They are converted to exactly the partials that
the rows would have produced, so the state has the same bytes either way. Only aggregates whose partials consist of such
parts can be pre-aggregated. Only the number of late rows is known then, not the rows themselves.
"""

from statebed.aggregates.preaggregation.groups import (
    GROUPS_IN,
    LATEST,
    ROW_COUNT,
    aggregate_parts,
    partial_columns,
    parts_of,
    preaggregated_input,
)
from statebed.aggregates.preaggregation.parts import Factor, Part, Reduce, Word, can_be_reversed

__all__ = [
    "GROUPS_IN",
    "LATEST",
    "ROW_COUNT",
    "Factor",
    "Part",
    "Reduce",
    "Word",
    "aggregate_parts",
    "can_be_reversed",
    "partial_columns",
    "parts_of",
    "preaggregated_input",
]
