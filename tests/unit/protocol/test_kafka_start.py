"""Positions from which a job continues to read Kafka topics, decided from recorded and available offsets."""

import pytest

from statebed.errors import InputError, ReplayError
from statebed.format import checkpoint_pb2 as pb
from statebed.protocol.kafka_start import (
    SourceStart,
    TopicState,
    check_source_choices,
    continued,
    lost_partitions,
    offsets_text,
    parse_offsets,
)
from statebed.protocol.projection import offsets_by_name, with_offsets

RECORDED = {"rides": {0: 5, 1: 7}}
WHERE = "job x"


def topic(*partitions: tuple[int, int], topic_id: str = "a") -> dict[str, TopicState]:
    return {"rides": TopicState(topic_id, dict(enumerate(partitions)))}


@pytest.mark.parametrize(
    ("available", "reasons"),
    [
        (topic((0, 5), (7, 9)), []),
        (topic((0, 9), (0, 7), (0, 3)), []),  # a new partition
        (topic((6, 9), (0, 7)), ["offsets 5 to 5 were removed by the topic's retention"]),
        (topic((0, 4), (0, 7)), ["the partition ends at offset 4: the topic was created again, or truncated"]),
        (topic((0, 9)), ["the partition no longer exists"]),
        (topic((0, 9), (0, 9), topic_id="b"), ["the topic was deleted and created again"] * 2),
        ({}, ["the topic no longer exists"] * 2),
    ],
)
def test_the_reason_why_a_partition_cannot_continue(available: dict[str, TopicState], reasons: list[str]) -> None:
    lost = lost_partitions(RECORDED, available, topic_ids={"rides": "a"})
    assert [item.reason for item in lost] == reasons


def test_an_unknown_topic_id_is_not_compared() -> None:
    assert lost_partitions(RECORDED, topic((0, 9), (0, 9), topic_id="b"), topic_ids={}) == []


@pytest.mark.parametrize(
    ("choice", "expected"),
    [(SourceStart.EARLIEST, {"rides": {0: 6, 1: 7}}), (SourceStart.LATEST, {"rides": {0: 9, 1: 7}})],
)
def test_a_choice_moves_only_the_partitions_that_lost_messages(
    choice: SourceStart, expected: dict[str, dict[int, int]]
) -> None:
    available = topic((6, 9), (0, 8))
    lost = lost_partitions(RECORDED, available, topic_ids={})
    assert continued(RECORDED, available, lost, choice, source="rides", where=WHERE) == expected


def test_without_a_choice_the_start_is_refused_and_lists_at_most_five_partitions() -> None:
    recorded = {"rides": dict.fromkeys(range(9), 5)}
    lost = lost_partitions(recorded, {}, topic_ids={})
    with pytest.raises(ReplayError, match=r"partition 4, position 5: .*; and 4 more") as caught:
        continued(recorded, {}, lost, None, source="rides", where=WHERE)
    assert "sources={'rides': 'earliest'}" in str(caught.value)


def test_a_topic_that_does_not_exist_cannot_be_continued_by_any_choice() -> None:
    lost = lost_partitions(RECORDED, {}, topic_ids={})
    with pytest.raises(ReplayError, match="reads rides, which no longer exists"):
        continued(RECORDED, {}, lost, SourceStart.EARLIEST, source="rides", where=WHERE)


def test_partitions_that_are_gone_are_left_out() -> None:
    available = topic((0, 9), topic_id="b")
    lost = lost_partitions(RECORDED, available, topic_ids={"rides": "a"})
    kept = continued(RECORDED, available, lost, SourceStart.EARLIEST, source="rides", where=WHERE)
    assert kept == {"rides": {0: 0}}


def test_offsets_survive_the_way_to_text_and_back() -> None:
    assert parse_offsets(offsets_text(RECORDED)) == RECORDED
    assert parse_offsets("-") == {}


def test_a_choice_for_an_unknown_source_is_refused() -> None:
    with pytest.raises(InputError, match="its sources are rides"):
        check_source_choices({"x": SourceStart.LATEST}, ["rides"], where=WHERE)


def test_offsets_of_the_recorded_batch_are_replaced_by_name() -> None:
    entries = [pb.LogEntry(name="6", content=b"v1\n{}\na\nb"), pb.LogEntry(name="7", content=b"v1\n{}\nc\n-\nd")]
    position = pb.SourcePosition(batch_id=7, offsets=entries, sources=["rides", "files", "again=rides"])
    assert offsets_by_name(position) == {"rides": "c", "again": "d"}
    moved = with_offsets(position, {"rides": "x", "again": "y"})
    assert [entry.content for entry in moved.offsets] == [b"v1\n{}\na\nb", b"v1\n{}\nx\n-\ny"]
    assert with_offsets(position, {}) is position
    assert offsets_by_name(pb.SourcePosition()) == {}
