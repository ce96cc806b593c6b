"""Expressions: SQL text over Arrow batches, with Spark's types and answers. No Spark in here."""

from statebed.operators.expressions.bound import BoundExpression, Expression, bind, filter_rows

__all__ = ["BoundExpression", "Expression", "bind", "filter_rows"]
