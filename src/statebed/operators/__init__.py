"""Stateful operators. Each is a definition that is shipped with tasks, and one step per epoch over its tables. This
package does not import Spark.
"""

from statebed.format.stream_schema import Changes, Input, Output
from statebed.operators.aggregation import Emit
from statebed.operators.operator import MAIN, Clock, Operator, StepResult
from statebed.operators.window_definition import Window, cumulative, sliding, tumbling
from statebed.operators.windows.aggregate import WindowAggregate

__all__ = [
    "MAIN",
    "Changes",
    "Clock",
    "Emit",
    "Input",
    "Operator",
    "Output",
    "StepResult",
    "Window",
    "WindowAggregate",
    "cumulative",
    "sliding",
    "tumbling",
]
