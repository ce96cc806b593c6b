"""Arithmetic of the aggregates: rows to partials, partials to partials, partials to results."""

from statebed.operators.accumulators.base import Accumulator
from statebed.operators.accumulators.bits import BitOperation, Bits
from statebed.operators.accumulators.counts import Count
from statebed.operators.accumulators.extremes import End, Extreme, ExtremeBy, has_order
from statebed.operators.accumulators.means import MORE_DIGITS, Mean
from statebed.operators.accumulators.moments import Moment, Moments
from statebed.operators.accumulators.sums import DecimalSum, FloatSum, IntegerSum

__all__ = [
    "MORE_DIGITS",
    "Accumulator",
    "BitOperation",
    "Bits",
    "Count",
    "DecimalSum",
    "End",
    "Extreme",
    "ExtremeBy",
    "FloatSum",
    "IntegerSum",
    "Mean",
    "Moment",
    "Moments",
    "has_order",
]
