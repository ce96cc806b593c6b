"""Pieces that are not for a level leave it as its own do."""

import pyarrow as pa
import pytest

from statebed.spark.epoch.level_task import _arrivals
from statebed.spark.plan.pieces import BRANCH, HEARTBEAT, PAYLOAD, REPORT, SUBTASK, piece, pieces


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_what_passes_a_level_has_the_schema_of_what_the_level_gives(kind: pa.DataType) -> None:
    rows = pa.table({"k": ["a", "b"]})
    (given,) = pieces(rows, 4, 1)
    sent = [given, piece(1, 5, b"later"), piece(1, REPORT, b"report"), piece(1, HEARTBEAT, b"")]
    schema = pa.schema([(SUBTASK, pa.int32()), (BRANCH, pa.int32()), (PAYLOAD, kind)])
    (arrived,) = pa.Table.from_batches(sent).cast(schema).combine_chunks().to_batches()
    passing: list[pa.RecordBatch] = []
    taken = list(_arrivals(arrived, {4}, passing))
    assert [(branch, one.to_pydict()) for branch, one in taken] == [(4, rows.to_pydict())]
    assert passing == sent[1:3]
    assert {one.schema for one in passing} == {given.schema}
