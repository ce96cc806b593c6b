"""Spark's own progress reports carry the figures of the epoch."""

import json
import time
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from statebed.spark.epoch.spark_progress import NAME, observed


class Seen(StreamingQueryListener):
    def __init__(self) -> None:
        self.reports: dict[int, Any] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        self.reports[event.progress.batchId] = event.progress

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        pass


def until(condition: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert condition()


def test_sparks_progress_carries_the_figures_of_the_epoch(rides: Any) -> None:
    rides.add_files(2)
    query = rides.job().start()
    seen = Seen()
    rides.spark.streams.addListener(seen)
    try:
        until(lambda: len([one for one in query.recent_progress if one.batch_id is not None]) == 2)
        [last] = [one for one in query.recent_progress if one.batch_id == 1]
        until(lambda: 1 in seen.reports and query.spark_query.recentProgress[-1]["batchId"] == 1)
        carried = query.spark_query.recentProgress[-1]["observedMetrics"][NAME]
        assert carried["epoch"] == last.epoch
        assert {name: carried[name] for name in observed(last)} == observed(last)
        assert carried["rows_in"] == 120
        assert carried["merge_us"] > 0
        assert seen.reports[1].observedMetrics[NAME]["state_rows"] == last.state_rows
        assert json.loads(seen.reports[1].json)["observedMetrics"][NAME]["state_bytes"] == last.state_bytes
        query.stop()
    finally:
        rides.spark.streams.removeListener(seen)
