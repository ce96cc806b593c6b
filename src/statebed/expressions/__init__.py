"""SQL expressions over Arrow batches, with the types and results of Spark SQL. This package does not use Spark."""

from statebed.expressions.binder import name_aggregates
from statebed.expressions.bound import BoundExpression, Expression, bind, filter_rows
from statebed.expressions.functions import FUNCTIONS

__all__ = ["FUNCTIONS", "BoundExpression", "Expression", "bind", "filter_rows", "name_aggregates"]
