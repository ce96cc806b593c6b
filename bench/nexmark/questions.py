"""The Nexmark queries that keep state, and those of them that Spark can answer with its own operators."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from examples.nexmark.sources import ARRIVED, DELAY
from examples.nexmark.statistics import LEVELS

Frames = Mapping[str, DataFrame]
NAMES = ("q3", "q4", "q5", "q7", "q8", "q9", "q11", "q12", "q15", "q16", "q17", "q18", "q19", "q20")
WHY_NOT = {
    "q4": "an aggregate over a changing aggregate",
    "q5": "ranks within windows",
    "q9": "the first row of each key",
    "q15": "distinct counts",
    "q16": "distinct counts",
    "q18": "the last row of each key",
    "q19": "the first rows of each key",
}
"""Features that Spark lacks for the other queries."""
TIMES = {"bid_on_arrival": ARRIVED}
"""Event time columns, where they are not `date_time`."""
_TEN_SECONDS = "10 seconds"


@dataclass(frozen=True)
class Question:
    """A query of Spark's."""

    answer: Callable[[Frames], DataFrame]
    keys: tuple[str, ...] = ()
    """Columns of which the latest row counts, if results are updated; none if they are final."""

    @property
    def mode(self) -> str:
        return "update" if self.keys else "append"


def timed(name: str, frame: DataFrame) -> DataFrame:
    """Return a stream with its watermark."""
    time = TIMES.get(name, "date_time")
    return frame.withWatermark(time, "0 seconds" if name in TIMES else DELAY)


def _q3(frames: Frames) -> DataFrame:
    items = frames["auction"].where("category = 10").select("id", "seller")
    sellers = frames["person"].where("state in ('OR', 'ID', 'CA')").select(F.col("id").alias("seller"), *_PLACE)
    return items.join(sellers, "seller").select("name", "city", "state", "id")


def _q7(frames: Frames) -> DataFrame:
    bids = frames["bid"].select("auction", "price", "bidder", "date_time", "extra")
    highest = bids.groupBy(_window("date_time")).agg(F.max("price").alias("highest"))
    pairs = bids.withColumn("in_window", _window("date_time")).join(
        highest, F.expr("price = highest and in_window = window")
    )
    return pairs.select("auction", "price", "bidder", "date_time", "extra")


def _q8(frames: Frames) -> DataFrame:
    persons = frames["person"].select("id", "name", _window("date_time").alias("signed_up"))
    sellers = frames["auction"].select("seller", _window("date_time").alias("sold"))
    new = persons.join(sellers, F.expr("id = seller and signed_up = sold"), "leftsemi")
    return new.select("id", "name", F.col("signed_up.start").alias("window_start"))


def _q11(frames: Frames) -> DataFrame:
    sessions = frames["bid"].groupBy("bidder", F.session_window("date_time", _TEN_SECONDS).alias("window"))
    return _counted(sessions.agg(F.count("*").alias("bids")))


def _q12(frames: Frames) -> DataFrame:
    windows = frames["bid_on_arrival"].groupBy("bidder", _window(ARRIVED).alias("window"))
    return _counted(windows.agg(F.count("*").alias("bids")))


def _q17(frames: Frames) -> DataFrame:
    day = F.date_format("date_time", "yyyy-MM-dd").alias("day")
    bids = [
        (F.count("*") if condition is None else F.count_if(F.expr(condition))).alias(f"{level}_bids")
        for level, condition in LEVELS.items()
    ]
    prices = [
        function("price").alias(f"{name}_price")
        for name, function in {"min": F.min, "max": F.max, "avg": F.avg, "sum": F.sum}.items()
    ]
    return frames["bid"].groupBy("auction", day).agg(*bids, *prices)


def _q20(frames: Frames) -> DataFrame:
    auctions = frames["auction"].where("category = 10")
    names = ("item_name", "description", "initial_bid", "reserve", "expires", "seller", "category")
    both = frames["bid"].alias("b").join(auctions.alias("a"), F.expr("b.auction = a.id"))
    times = F.col("a.date_time").alias("date_time_of_auction"), F.col("a.extra").alias("extra_of_auction")
    return both.select("b.*", *(f"a.{name}" for name in names), *times)


def _window(column: str) -> Column:
    return F.window(column, _TEN_SECONDS)


def _counted(result: DataFrame) -> DataFrame:
    edges = (F.col(f"window.{edge}").alias(f"window_{edge}") for edge in ("start", "end"))
    return result.select("bidder", *edges, "bids")


_PLACE = ("name", "city", "state")
QUESTIONS = {
    "q3": Question(_q3),
    "q7": Question(_q7),
    "q8": Question(_q8),
    "q11": Question(_q11),
    "q12": Question(_q12),
    "q17": Question(_q17, keys=("auction", "day")),
    "q20": Question(_q20),
}
