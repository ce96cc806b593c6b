"""Queries that Spark and statebed must answer with the same rows in each batch: their form, and what they share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from spark.queries.harness import Tables


@dataclass(frozen=True)
class Case:
    """A query and the output mode in which it runs."""

    name: str
    build: Callable[[Tables], DataFrame]
    mode: str = "append"
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of the session."""
    ordered: bool = False
    """Whether the rows of a file must be in the order of their times."""

    def __str__(self) -> str:
        return f"{self.name}-{self.mode}"


RANGE = "k = k2 and ts2 between ts and ts + interval 20 seconds"
LONG_RANGE = "k = k2 and ts2 between ts and ts + interval 5 minutes"
"""Range of semi joins: with a shorter range, Spark loses rows that arrive late together with their partner."""
AROUND = "k = k2 and ts2 >= ts - interval 10 seconds and ts2 < ts + interval 15 seconds"


def sides(t: Tables, keys: str = "k is not null") -> tuple[DataFrame, DataFrame]:
    """Two streams; without null keys, which Spark joins with each other in a full outer join, against SQL."""
    right = t.marked("b", "1 minute").where(keys).selectExpr("k as k2", "v as v2", "x as x2", "ts as ts2")
    return t.marked().where(keys).select("k", "v", "x", "ts"), right


def join(name: str, how: str, condition: str, keys: str = "k is not null") -> Case:
    def build(t: Tables) -> DataFrame:
        left, right = sides(t, keys)
        return left.join(right, F.expr(condition), how)

    return Case(f"{name}_{how}", build)


def windowed(window: Callable[[], Column], *aggregates: str) -> Callable[[Tables], DataFrame]:
    def build(t: Tables) -> DataFrame:
        return t.marked().groupBy(window(), "k").agg(*(F.expr(one) for one in aggregates))

    return build


def minute() -> Column:
    return F.window("ts", "1 minute")


def hop() -> Column:
    return F.window("ts", "1 minute", "20 seconds", "5 seconds")


def session() -> Column:
    return F.session_window("ts", "5 seconds")


def sql(name: str, text: str, mode: str = "append") -> Case:
    return Case(name, lambda t: t.sql(text), mode)
