"""The function and the memory sink keep what they promise."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from statebed.checkpoint import Publication
from statebed.errors import FencedError, SinkError
from statebed.format import checkpoint_pb2 as pb
from statebed.format.digest import crc32c
from statebed.protocol import Guarantee, SinkPosition
from statebed.sinks import FunctionSink, MemorySink
from statebed.storage import MemoryStore


def publication(run: int, epoch: int, *values: int) -> Publication:
    store = MemoryStore()
    files = []
    for number, value in enumerate(values):
        buffer = pa.BufferOutputStream()
        pq.write_table(pa.table({"n": [value]}), buffer)
        data = buffer.getvalue().to_pybytes()
        store.put(f"f{number}", data)
        files.append(pb.OutboxFile(path=f"f{number}", size=len(data), rows=1, crc32c=crc32c(data)))
    return Publication(
        run=run, epoch=epoch, record=pb.CheckpointMetadata(), files=tuple(files), commit_data=(), store=store
    )


def test_a_function_gets_the_rows_of_all_files_and_the_number_and_no_empty_epoch() -> None:
    seen: list[tuple[list[int], int]] = []
    sink = FunctionSink(
        sink_id="f",
        function=lambda rows, epoch: seen.append((rows, epoch)),
        to_frame=lambda table: table["n"].to_pylist(),
    )
    assert sink.open(1) is None
    sink.publish(publication(1, 2, 10, 11))
    sink.publish(publication(1, 3))
    sink.publish(publication(1, 2, 10, 11))
    assert seen == [([10, 11], 2), ([10, 11], 2)]
    assert sink.guarantee is Guarantee.AT_LEAST_ONCE


def test_a_function_that_fails_is_named_with_its_epoch_and_its_own_error() -> None:
    sink = FunctionSink(sink_id="f", function=lambda rows, _: rows["other"], to_frame=pa.Table.to_pydict)
    with pytest.raises(SinkError, match="sink f raised KeyError: 'other'") as caught:
        sink.publish(publication(1, 2, 10, 11))
    assert caught.value.where.startswith("epoch 2, 2 rows; ")
    assert Path(__file__).name in caught.value.where
    assert isinstance(caught.value.__cause__, KeyError)


def test_the_memory_sink_has_each_epoch_once_refuses_older_runs_and_goes_back() -> None:
    sink = MemorySink("m")
    assert sink.open(1) is None
    sink.publish(publication(1, 2, 10))
    sink.publish(publication(1, 2, 10))
    sink.publish(publication(1, 3, 11))
    assert sink.open(4) == SinkPosition(run=1, epoch=3)
    with pytest.raises(FencedError):
        sink.publish(publication(1, 5, 12))
    with pytest.raises(FencedError):
        sink.open(2)
    sink.roll_back(4, 2)
    sink.publish(publication(4, 6, 13))
    assert [row["n"] for row in sink.rows] == [10, 13]
    assert sink.guarantee is Guarantee.EXACTLY_ONCE
