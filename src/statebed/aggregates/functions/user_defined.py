"""Aggregates that users define themselves."""

from statebed.aggregates.accumulators import (
    Accumulator,
    UserAggregate,
    UserDefined,
    check_user_aggregate,
    user_description,
)
from statebed.aggregates.aggregate import Aggregate
from statebed.aggregates.declaration import USER_DEFINED, AccumulatorRequest, Function, Takes, declare
from statebed.errors import InputError
from statebed.expressions.column_like import ColumnLike

__all__ = ["aggregate"]


def _user_defined(request: AccumulatorRequest) -> Accumulator | None:
    return None if request.user is None else UserDefined(request.name, request.user, changelog=request.changelog)


_USER_DEFINED = declare(Function(USER_DEFINED, _user_defined, takes=Takes.ORDERED, state="as declared", option_count=4))


def aggregate(user: UserAggregate, *columns: ColumnLike, where: ColumnLike | None = None) -> Aggregate:
    """Run an aggregate of your own over `columns`.

    It is an object with `state`, `output`, accumulate, merge and finish. Rows in which every column is null are not
    passed to it. Give it a `version`, and change that when it computes something else.

    >>> import numpy as np, pyarrow as pa
    >>> class Product:
    ...     state, output = "product double", "double"
    ...     def accumulate(self, groups, n_groups, values):
    ...         product = np.ones(n_groups)
    ...         np.multiply.at(product, np.asarray(groups), np.asarray(values))
    ...         return [pa.array(product)]
    ...     merge = accumulate
    ...     def finish(self, product):
    ...         return product
    >>> sb.testing.evaluate([{"x": 2.0}, {"x": 3.0}], product=sb.aggregate(Product(), "x"))
    {'product': 6.0}
    """
    check_user_aggregate(user)
    if not columns:
        raise InputError("aggregate() has no input", fix="name a column: aggregate(MyAggregate(), 'fare')")
    return Aggregate(_USER_DEFINED, columns, where, user_description(user), user)
