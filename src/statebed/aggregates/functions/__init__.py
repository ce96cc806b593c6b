"""The aggregates as users write them: `sb.count()`, `sb.sum("fare", where="paid")`.

Columns are names, SQL text or Spark Columns. `where` limits an aggregate to the rows for which it holds. All ignore
nulls, and are null when there is no value, unless they say otherwise; none depends on the order of rows.

Each module holds one family: the declarations, the functions that users call, and accumulators that nothing else uses.
"""

from statebed.aggregates.declaration import USER_DEFINED, declared_functions
from statebed.aggregates.functions import bits, counts, extremes, moments, sums, user_defined, values
from statebed.aggregates.functions.bits import *
from statebed.aggregates.functions.counts import *
from statebed.aggregates.functions.extremes import *
from statebed.aggregates.functions.moments import *
from statebed.aggregates.functions.sums import *
from statebed.aggregates.functions.user_defined import *
from statebed.aggregates.functions.values import *
from statebed.expressions import name_aggregates

__all__: list[str] = []
__all__ += counts.__all__
__all__ += sums.__all__
__all__ += extremes.__all__
__all__ += values.__all__
__all__ += bits.__all__
__all__ += moments.__all__
__all__ += user_defined.__all__

OTHER_NAMES = {other: function.name for function in declared_functions() for other in function.other_names}
"""Names of other engines, and ours."""

name_aggregates({name: name for name in __all__ if name != USER_DEFINED} | OTHER_NAMES)
