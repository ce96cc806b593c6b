"""Decision whether a job can continue to read Kafka topics where it stopped, and from where if the user gave that up.

The record holds the next offset of each partition, and the ids of the topics. Messages may have gone meanwhile: the
topic was deleted, re-created or truncated, or its retention has passed the position.
"""

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from statebed.errors import InputError, ReplayError

Offsets = Mapping[str, Mapping[int, int]]
"""Next offset by topic and partition."""


class SourceStart(enum.Enum):
    """Choice for a source whose messages are gone. Without a choice, the start is refused."""

    EARLIEST = "earliest"
    """Continue with the oldest message that the topic has."""
    LATEST = "latest"
    """Continue with messages that arrive from now on."""


@dataclass(frozen=True)
class TopicState:
    """An existing topic."""

    topic_id: str
    partitions: Mapping[int, tuple[int, int]]
    """First and next offset of each partition."""


Available = Mapping[str, TopicState]


@dataclass(frozen=True)
class Lost:
    """A partition that cannot be read from the recorded offset."""

    topic: str
    partition: int
    position: int
    reason: str

    def __str__(self) -> str:
        return f"topic {self.topic}, partition {self.partition}, position {self.position}: {self.reason}"


def parse_offsets(text: str) -> Offsets:
    """Return the offsets of Spark's Kafka source from its JSON text; empty if it has none.

    >>> parse_offsets('{"orders":{"0":5}}')
    {'orders': {0: 5}}
    """
    if not text.startswith("{"):
        return {}
    return {topic: {int(number): offset for number, offset in own.items()} for topic, own in json.loads(text).items()}


def lost_partitions(recorded: Offsets, available: Available, *, topic_ids: Mapping[str, str]) -> list[Lost]:
    """Return the partitions whose messages from the recorded offset on are gone; `topic_ids` are the recorded ids."""
    lost = []
    for topic, positions in recorded.items():
        state = available.get(topic)
        for partition, position in positions.items():
            reason = _reason(state, partition, position, recorded_id=topic_ids.get(topic, ""))
            if reason:
                lost.append(Lost(topic, partition, position, reason))
    return lost


def _reason(state: TopicState | None, partition: int, position: int, *, recorded_id: str) -> str:
    if state is None:
        return "the topic no longer exists"
    if recorded_id and state.topic_id != recorded_id:
        return "the topic was deleted and created again"
    if partition not in state.partitions:
        return "the partition no longer exists"
    first, end = state.partitions[partition]
    if position < first:
        return f"offsets {position} to {first - 1} were removed by the topic's retention"
    if position > end:
        return f"the partition ends at offset {end}: the topic was created again, or truncated"
    return ""


def continued(
    recorded: Offsets,
    available: Available,
    lost: Sequence[Lost],
    choice: SourceStart | None,
    *,
    source: str,
    where: str,
) -> Offsets:
    """Return the offsets to continue from; raise ReplayError if messages are gone and the user has made no choice."""
    if not lost:
        return recorded
    if choice is None:
        listed = "; ".join(map(str, lost[:5])) + (f"; and {len(lost) - 5} more" if len(lost) > 5 else "")  # noqa: PLR2004
        raise ReplayError(
            f"the source {source!r} cannot continue where it stopped: {listed}",
            where=where,
            fix=f"restore the topic; or choose at the start: job.start(sources={{{source!r}: 'earliest'}}) to continue "
            "with the oldest message there is, or 'latest' to continue with new ones; for SQL text, statebed sql "
            f"--sources {source}=earliest",
        )
    topics = {item.topic for item in lost}
    gone = sorted(topic for topic in topics if topic not in available)
    if gone:
        raise ReplayError(
            f"the source {source!r} reads {', '.join(gone)}, which no longer exists",
            where=where,
            fix="create the topic, or remove it from topics=",
        )
    moved = {topic: dict(positions) for topic, positions in recorded.items()}
    for topic in topics:
        place = 0 if choice is SourceStart.EARLIEST else 1
        partitions = available[topic].partitions
        affected = {item.partition for item in lost if item.topic == topic}
        kept = {number: offset for number, offset in moved[topic].items() if number in partitions}
        moved[topic] = kept | {number: partitions[number][place] for number in affected if number in partitions}
    return moved


def offsets_text(offsets: Offsets) -> str:
    """Return offsets as Spark's Kafka source writes them."""
    text = {topic: {str(number): offset for number, offset in own.items()} for topic, own in offsets.items()}
    return json.dumps(text, separators=(",", ":"))


def check_source_choices(choices: Mapping[str, SourceStart], sources: Sequence[str], *, where: str) -> None:
    """Raise InputError for a choice whose source the job does not have."""
    for name in choices:
        if name not in sources:
            raise InputError(
                f"sources= names {name!r}, which is not a source of this job",
                where=where,
                fix=f"its sources are {', '.join(sources)}",
            )
