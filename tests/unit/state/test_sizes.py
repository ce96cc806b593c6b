"""Bytes held by Arrow data: every allocation once, whole, whichever array shows it."""

import numpy as np
import pyarrow as pa
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from statebed.state.memory.sizes import compacted, held_bytes, pieces, shown_bytes


def numbers(rows: int, *, start: int = 0) -> pa.Array:
    """Return an array in the pool of pyarrow, unlike one made of numpy memory."""
    return pa.array(range(start, start + rows), pa.int64())


def test_arrays_over_numpy_memory_count() -> None:
    memory = np.arange(1000, dtype=np.int64)
    before = pa.total_allocated_bytes()
    table = pa.table({"a": pa.Array.from_buffers(pa.int64(), 1000, [None, pa.py_buffer(memory)])})
    assert pa.total_allocated_bytes() == before
    assert held_bytes(table) == 8000
    assert held_bytes(table, memory, memory[10:20]) == 8000


def test_a_slice_counts_what_it_pins() -> None:
    table = pa.table({"a": numbers(1000)})
    assert held_bytes(table.slice(500, 10)) == held_bytes(table) == 8000
    assert shown_bytes(table.slice(500, 10)) == 80


def test_rows_of_an_ipc_message_count_the_whole_message() -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("a", pa.int64()), ("b", pa.int64())])) as writer:
        writer.write_batch(pa.record_batch({"a": numbers(1000), "b": numbers(1000)}))
    message = sink.getvalue()
    read = pa.ipc.open_stream(message).read_all()
    assert held_bytes(read.select(["a"])) == message.size
    assert held_bytes(compacted(read.select(["a"]))) == 8000


def test_shared_buffers_count_once_over_several_tables() -> None:
    shared = numbers(1000)
    one, other = pa.table({"a": shared}), pa.table({"b": shared, "c": numbers(1000)})
    assert held_bytes(one, other) == 16_000
    assert held_bytes(one, one.slice(3), shared) == 8000


def test_a_compacted_slice_holds_what_it_shows() -> None:
    table = pa.table({"a": numbers(10_000), "s": [f"row {n}" for n in range(10_000)]})
    piece = compacted(table.slice(77, 50))
    assert piece.equals(table.slice(77, 50))
    assert held_bytes(piece) <= 1.1 * shown_bytes(piece)
    assert compacted(table) is table


def test_dictionaries_at_any_depth_count() -> None:
    words = pa.array(["x" * 1000, "y" * 1000])
    encoded = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int8()), words)
    nested = pa.StructArray.from_arrays([encoded, numbers(3)], names=["word", "n"])
    assert held_bytes(encoded) == 3 + held_bytes(words)
    assert held_bytes(nested) == 3 + held_bytes(words) + 24
    assert held_bytes(pa.ListArray.from_arrays(pa.array([0, 3], pa.int32()), encoded)) > held_bytes(words)


@pytest.mark.parametrize("kind", ["table", "batch"])
def test_pieces_of_a_large_batch_are_small_and_stand_alone(kind: str) -> None:
    columns = {"a": numbers(5000), "s": pa.array(["y" * (n % 300) for n in range(5000)])}
    whole = pa.table(columns) if kind == "table" else pa.record_batch(columns)
    found = list(pieces(whole, limit=50_000))
    assert len(found) > 10
    assert all(shown_bytes(piece) <= 50_000 for piece in found)
    assert all(held_bytes(piece) <= 1.1 * 50_000 for piece in found)
    tables = [piece if kind == "table" else pa.Table.from_batches([piece]) for piece in found]
    assert pa.concat_tables(tables).equals(pa.table(columns))


def test_one_row_larger_than_the_limit_is_a_piece() -> None:
    table = pa.table({"s": ["z" * 10_000, "short"]})
    assert [piece.num_rows for piece in pieces(table, limit=100)] == [1, 1]


@settings(max_examples=examples(50))
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 90), st.integers(1, 10)), min_size=1, max_size=6))
def test_bytes_held_are_those_of_the_distinct_parents(slices: list[tuple[int, int, int]]) -> None:
    parents = [numbers(100 + index) for index in range(3)]
    shown = [pa.table({"a": parents[index].slice(start, length)}) for index, start, length in slices]
    assert held_bytes(*shown) == sum(8 * (100 + index) for index in {index for index, _, _ in slices})
