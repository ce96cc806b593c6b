"""Functions of the user in Spark's own expressions, before the first operator."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas import functions as declarations
from pyspark.sql.pandas.types import from_arrow_type

from statebed.expressions.user_functions import UserFunction

_declared: Any = declarations.arrow_udf
"""Declares a function of Arrow arrays. Spark's stubs do not allow structs and maps as results."""


def register_in_spark(session: SparkSession, name: str, function: UserFunction) -> None:
    """Register a function in a Spark session under its name, as a function of Arrow arrays."""
    returns = from_arrow_type(function.returns)
    session.udf.register(name, _declared(_on_arrays(function), returnType=returns))


def _on_arrays(function: UserFunction) -> Callable[..., pa.Array]:
    def evaluate(*columns: pa.Array) -> pa.Array:
        return function.evaluate(*columns)

    return evaluate
