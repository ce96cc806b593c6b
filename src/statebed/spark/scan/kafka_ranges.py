"""Messages of a micro-batch, as Spark chose them, divided into tasks."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from statebed.spark.scan.kafka_reader import KafkaClient, KafkaRange
from statebed.spark.scan.parquet_reader import ScanRefusedError

_LEAF = "StreamingDataSourceV2ScanRelation"
"""Leaf of the plan of a batch that reads messages."""
Offsets = Mapping[str, Mapping[str, int]]


def ranges_of(leaf: Any, client: KafkaClient) -> list[KafkaRange]:
    """Return what a leaf of a batch reads; raise ScanRefusedError if Spark has to decide what to do."""
    if str(leaf.nodeName()) != _LEAF:
        raise ScanRefusedError(f"messages are read as {leaf.nodeName()}")
    start, end = leaf.startOffset(), leaf.endOffset()
    if start.isEmpty() or end.isEmpty():
        raise ScanRefusedError("the batch has no offsets")
    return ranges_between(json.loads(start.get().json()), json.loads(end.get().json()), client)


def ranges_between(start: Offsets, end: Offsets, client: KafkaClient) -> list[KafkaRange]:
    """Return the messages between offsets of partitions by topic, such as {"orders": {"0": 17}}.

    A partition that is new is read from its first message, which must have the offset 0.
    """
    gone = [
        f"{topic}/{partition}"
        for topic, own in start.items()
        for partition in own
        if partition not in end.get(topic, {})
    ]
    if gone:
        raise ScanRefusedError(f"partitions are gone: {', '.join(gone)}")
    ranges = [
        KafkaRange(client, topic, int(partition), int(start.get(topic, {}).get(partition, 0)), int(last))
        for topic, own in sorted(end.items())
        for partition, last in sorted(own.items())
    ]
    backwards = [messages.path for messages in ranges if messages.start > messages.end or messages.start < 0]
    if backwards:
        raise ScanRefusedError(f"offsets go backwards: {', '.join(backwards)}")
    return [messages for messages in ranges if messages.start < messages.end]


def tasks_of_ranges(
    ranges: Sequence[tuple[int, KafkaRange]], *, slots: int
) -> list[tuple[tuple[int, KafkaRange], ...]]:
    """Divide ranges, each with the number of its stream, into at most as many tasks as there are slots, the longest
    ranges first.
    """
    tasks: list[list[tuple[int, KafkaRange]]] = [[] for _ in range(min(max(slots, 1), len(ranges)))]
    sizes = [0] * len(tasks)
    for number, messages in sorted(ranges, key=lambda work: work[1].start - work[1].end):
        smallest = sizes.index(min(sizes))
        tasks[smallest].append((number, messages))
        sizes[smallest] += messages.end - messages.start
    return [tuple(task) for task in tasks]
