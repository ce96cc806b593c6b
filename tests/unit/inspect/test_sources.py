"""Committed offsets and lag of sources: from the record, and from what Spark last reported."""

from typing import Any

import pytest

from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.sources import PartitionLag, committed_offsets, offsets_behind, partition_lags, sources_of
from statebed.spark.epoch.source_progress import SourceProgressBoard, progress_of

KAFKA = {
    "description": "KafkaV2[Subscribe[rides]]",
    "startOffset": {"rides": {"0": 1, "1": 1}},
    "endOffset": {"rides": {"0": 50, "1": 70}},
    "latestOffset": {"rides": {"0": 90, "1": 70}},
    "numInputRows": 118,
    "inputRowsPerSecond": 59.0,
    "processedRowsPerSecond": 236.0,
    "metrics": {"maxOffsetsBehindLatest": "40"},
}
FILES = {"description": "FileStreamSource", "endOffset": {"logOffset": 3}, "latestOffset": None, "numInputRows": 7}


def test_kafka_tells_how_many_offsets_it_is_behind_and_files_do_not() -> None:
    kafka, files = progress_of({"batchId": 7, "sources": [KAFKA, FILES]}, ["rides", "cars"])
    assert (kafka.source, kafka.offsets_behind, kafka.rows, kafka.batch_id) == ("rides", 40, 118, 7)
    assert (files.source, files.HasField("offsets_behind"), files.rows) == ("cars", False, 7)


@pytest.mark.parametrize(
    ("end", "latest", "behind"),
    [
        ("5", "9", 4),
        ("9", "5", 0),
        ('{"t":{"0":5}}', '{"t":{"0":5,"1":3}}', 3),
        ('{"t":{"0":"a"}}', '{"t":{"0":"b"}}', None),
        ("no json", "9", None),
        ("true", "false", None),
        ("{}", "{}", None),
    ],
)
def test_offsets_are_compared_where_they_are_numbers(end: str, latest: str, behind: int | None) -> None:
    assert offsets_behind(end, latest) == behind


def test_every_partition_of_a_kafka_source_has_its_lag() -> None:
    (kafka,) = progress_of({"batchId": 7, "sources": [KAFKA]}, ["rides"])
    heartbeat = pb.RunHeartbeat(sources=[kafka])
    record = pb.CheckpointMetadata(sources=[pb.SourceWatermark(source="rides")])
    (source,) = sources_of(record, heartbeat)
    assert source.partitions == (PartitionLag("rides", 0, 50, 90), PartitionLag("rides", 1, 70, 70))
    assert [lag.behind for lag in source.partitions] == [40, 0]


@pytest.mark.parametrize("offset", ["", "5", "true", '{"logOffset":3}', '{"t":{"0":"a"}}', '{"t":{"0":5'])
def test_offsets_of_other_sources_have_no_partitions(offset: str) -> None:
    assert partition_lags(offset, offset) == ()


@pytest.mark.parametrize("report", [{}, {"sources": None}, {"sources": [{}]}, {"sources": [FILES, FILES, FILES]}])
def test_a_report_that_says_little_is_no_error(report: dict[str, Any]) -> None:
    board = SourceProgressBoard(["rides"])
    board.take(report)
    assert len(board.newest()) == len(report.get("sources") or [])


def test_the_newest_entry_of_the_offset_log_counts_and_a_source_may_have_several_lines() -> None:
    entries = [
        pb.LogEntry(name="9", content=b'v1\n{}\n{"logOffset":1}\n-\n5'),
        pb.LogEntry(name="10", content=b'v1\n{}\n{"logOffset":2}\n{"logOffset":0}\n6'),
    ]
    position = pb.SourcePosition(offsets=entries, sources=["rides", "rides", "cars"])
    assert committed_offsets(position) == {"rides": '{"logOffset":2}, {"logOffset":0}', "cars": "6"}
    assert committed_offsets(pb.SourcePosition()) == {}


def test_lag_and_rates_are_of_the_heartbeat_and_offsets_of_the_record() -> None:
    position = pb.SourcePosition(offsets=[pb.LogEntry(name="1", content=b"v1\n{}\n5")], sources=["rides"])
    record = pb.CheckpointMetadata(
        source_position=position, sources=[pb.SourceWatermark(source="rides", watermark_us=3)]
    )
    beat = pb.RunHeartbeat(sources=progress_of({"sources": [KAFKA]}, ["rides"]))
    (found,) = sources_of(record, beat)
    assert (found.offset, found.watermark_us, found.offsets_behind) == ("5", 3, 40)
    assert found.processed_rows_per_second == 236.0
    (alone,) = sources_of(record)
    assert (alone.offset, alone.offsets_behind, alone.input_rows_per_second) == ("5", None, None)
