"""Positions of sources and sinks, read like state."""

import datetime as dt
from pathlib import Path

import pytest

import statebed as sb
from statebed.checkpoint.log import CheckpointLog
from statebed.errors import EpochNotRetainedError, StatebedError
from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.positions import positions_of
from statebed.storage import MemoryStore

HOUR_US = 3_600_000_000


def record_with(*offsets: str, sources: list[str]) -> pb.CheckpointMetadata:
    content = "\n".join(["v1", "{}", *offsets]).encode()
    position = pb.SourcePosition(offsets=[pb.LogEntry(name="7", content=content)], sources=sources)
    marks = [pb.SourceWatermark(source="orders", watermark_us=HOUR_US, max_event_time_us=2 * HOUR_US)]
    return pb.CheckpointMetadata(job_id="shop", epoch=9, source_position=position, sources=marks)


def log() -> CheckpointLog:
    return CheckpointLog(MemoryStore(), "shop")


def test_each_partition_of_a_topic_is_a_row_and_each_other_source_is_one() -> None:
    kafka, files = '{"orders":{"1":70,"0":5},"returns":{"0":0}}', '{"logOffset":3}'
    rows = positions_of(log(), record_with(kafka, files, sources=["orders", "cars"])).sources.to_pylist()
    hours = [dt.datetime(1970, 1, 1, hour, tzinfo=dt.UTC) for hour in (1, 2)]
    times = dict(zip(("watermark", "newest_event_time"), hours, strict=True))
    none = dict.fromkeys(times)
    assert rows == [
        {"source": "cars", "topic": None, "partition": None, "position": files, **none},
        {"source": "orders", "topic": "orders", "partition": 0, "position": "5", **times},
        {"source": "orders", "topic": "orders", "partition": 1, "position": "70", **times},
        {"source": "orders", "topic": "returns", "partition": 0, "position": "0", **times},
    ]


def test_a_source_without_a_position_is_still_a_row() -> None:
    (row,) = positions_of(log(), record_with("-", sources=["orders"])).sources.to_pylist()
    assert (row["source"], row["position"]) == ("orders", None)


def test_sinks_tell_what_they_have_and_since_when_they_are_gone() -> None:
    record = record_with("-", sources=["orders"])
    record.sinks.add(sink_id="table", operator_id="totals", stream="main")
    record.sinks.add(sink_id="new", operator_id="totals", stream="main")
    record.outbox.add(operator_id="totals", stream="main", rows=3, path="outbox/1")
    record.sink_histories.add(sink_id="table", kind="sqlite", target="a.db/t", last_output=7, published=8)
    record.sink_histories.add(sink_id="old", operator_id="counts", kind="parquet", last_output=4, absent_since=6)
    rows = {row.pop("sink"): row for row in positions_of(log(), record).sinks.to_pylist()}
    assert list(rows) == ["new", "old", "table"]
    assert rows["new"] == {
        "operator": "totals",
        "kind": None,
        "target": None,
        "last_output": 9,
        "published": None,
        "absent_since": None,
        "epochs_given_up": 0,
        "rows_given_up": 0,
    }
    assert (rows["old"]["operator"], rows["old"]["last_output"], rows["old"]["absent_since"]) == ("counts", 4, 6)
    assert (rows["table"]["target"], rows["table"]["last_output"], rows["table"]["published"]) == ("a.db/t", 9, 8)


def test_positions_are_read_at_an_epoch_as_state_is(tmp_path: Path) -> None:
    sb.testing.write_example(str(tmp_path))
    newest, first = (sb.read_positions(tmp_path, job="rides", epoch=epoch) for epoch in (None, 2))
    assert (newest.epoch, first.epoch) == (3, 2)
    marks = [positions.sources["newest_event_time"][0].as_py() for positions in (first, newest)]
    assert marks[0] < marks[1]
    with pytest.raises(EpochNotRetainedError):
        sb.read_positions(tmp_path, job="rides", epoch=77)
    with pytest.raises(StatebedError, match="no record"):
        sb.read_positions(tmp_path, job="nope")
