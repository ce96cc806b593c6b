"""Messages whose JSON must be read one by one are left to Spark, unless they are few."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from statebed.expressions import bind
from statebed.spark.scan.kafka_reader import KafkaClient
from statebed.spark.scan.native_scan import ScanFunction
from statebed.spark.scan.parquet_reader import FileColumn, ScanRefusedError
from statebed.spark.scan.program import Program, ScanProjection

VALUE = pa.field("c0", pa.string())


@dataclass(frozen=True)
class Messages:
    """Messages in memory."""

    values: tuple[str, ...]
    path: str = "topic t, partition 0"

    def batches(self, columns: Sequence[FileColumn], *, case_sensitive: bool) -> Iterator[pa.RecordBatch]:
        assert not case_sensitive
        yield pa.record_batch([pa.array(self.values)], schema=pa.schema([column.field for column in columns]))


def rows_of(values: Sequence[str]) -> int:
    parsed = ScanProjection(("row",), (bind("from_json(c0, 'n INT')", pa.schema([VALUE])),))
    client = KafkaClient.of({"kafka.bootstrap.servers": "a:1"})
    program = Program((FileColumn("value", VALUE),), (parsed,), client=client)
    part: Any = Messages(tuple(values))
    return sum(batch.num_rows for batch in ScanFunction((((0, part),),), (program,), False).rows(0, [0], {}))


def test_a_few_documents_may_be_read_one_by_one() -> None:
    assert rows_of(['{"n": 1}'] * 20_000 + ['{"n": "x"}'] * 100) == 20_100


def test_many_documents_that_do_not_fit_are_left_to_spark() -> None:
    with pytest.raises(ScanRefusedError, match="of 20,000 JSON values do not fit the schema"):
        rows_of(['{"n": 1}', '{"n": "x"}'] * 10_000)
