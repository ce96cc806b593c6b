"""Arrow rows as CSV for PostgreSQL's COPY, built column by column, without a loop over rows where possible.

Null is an empty field without quotes, an empty text one with quotes; every text is quoted.
"""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from statebed.format.json_values import json_texts

_OPTIONS = pyarrow.csv.WriteOptions(include_header=False)


def csv_of(columns: Sequence[pa.Array]) -> bytes:
    """Return the rows as CSV, without a header."""
    texts = [_text(column) for column in columns]
    sink = pa.BufferOutputStream()
    names = [str(number) for number in range(len(texts))]
    pyarrow.csv.write_csv(pa.RecordBatch.from_arrays(texts, names=names), sink, _OPTIONS)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _text(array: pa.Array) -> pa.Array:
    """Return the column as it is if Arrow's CSV writer supports it, else as text that PostgreSQL parses."""
    kind = array.type
    if pa.types.is_nested(kind):
        return json_texts(array)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.array([None if value is None else f"\\x{value.hex()}" for value in array.to_pylist()], pa.string())
    if pa.types.is_duration(kind):
        micros = array.cast(pa.duration("us")).cast(pa.int64()).cast(pa.string())
        return pc.binary_join_element_wise(micros, pa.scalar("microseconds"), " ")
    if pa.types.is_temporal(kind) or pa.types.is_decimal(kind):
        return array.cast(pa.string())
    return array
