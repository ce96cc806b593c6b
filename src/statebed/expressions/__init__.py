"""Expressions: SQL text over Arrow batches, with Spark's types and answers. No Spark in here."""

from statebed.expressions.bound import BoundExpression, Expression, bind, filter_rows
from statebed.expressions.functions import FUNCTIONS

__all__ = ["FUNCTIONS", "BoundExpression", "Expression", "bind", "filter_rows"]
