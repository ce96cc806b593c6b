"""Operators that forget by event time are refused on streams without one: every row would be late."""

import pyarrow as pa
import pytest

import statebed as sb
from statebed.flow.stream import Stream


def untimed() -> Stream:
    return sb.Flow("f").source("payments", "card long, amount long, ts timestamp")


@pytest.mark.parametrize(
    "build",
    [
        lambda rows: rows.key_by("card", name="totals").agg(n=sb.count(), ttl="1 day"),
        lambda rows: rows.deduplicate("card", ttl="1 day", name="totals"),
        lambda rows: rows.key_by("card", name="totals").top(2, by="amount", ttl="1 day"),
    ],
    ids=["aggregate", "deduplicate", "top"],
)
def test_a_ttl_by_event_time_needs_event_times(build: object) -> None:
    assert callable(build)
    with pytest.raises(sb.InputError, match="no event time") as refused:
        build(untimed())
    assert "totals" in str(refused.value)
    assert "watermark=" in str(refused.value)
    assert "ttl_clock='epoch_time'" in str(refused.value)


def test_a_ttl_by_epoch_time_needs_none() -> None:
    untimed().key_by("card", name="totals").agg(n=sb.count(), ttl="1 day", ttl_clock="epoch_time")


def test_results_of_untimed_rows_have_no_event_time_either() -> None:
    totals = untimed().key_by("card", name="totals").agg(n=sb.count())
    with pytest.raises(sb.InputError, match="event-time"):
        totals.group_by("card", sb.tumbling("1 minute"), name="windows").agg(n=sb.count())


class Stamped(sb.Process):
    """Gives its results an event time."""

    output = "card bigint"

    def on_batch(self, rows: pa.RecordBatch, ctx: sb.Context) -> pa.Table:
        return pa.table({"card": rows["card"], "_time": rows["ts"]})


def test_results_of_a_process_may_have_event_times_of_their_own() -> None:
    stamped = untimed().key_by("card").process(Stamped(), name="stamped")
    stamped.group_by("card", sb.tumbling("1 minute"), name="windows").agg(n=sb.count())
