"""Rows that were added up before they came: what somebody else computes of each group, and partials made of it.

A Spark job can add rows up in the JVM, where they are, and send one row for each group instead. What it computes are
*parts*: plain counts, sums and extremes that no order of rows changes. Here they become the very partials that the rows
would have become, so the state has the same bytes either way. Only aggregates whose partials are made of such parts can
be computed so; of rows that came too late only the number is known then.
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
