"""Functions that only Python computes, applied once per distinct combination of operands instead of once per row."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.columns import fixed_width_values, validity
from statebed.expressions.list_parts import check_elements, check_repeated, content_bytes, taken
from statebed.expressions.terms import Datum
from statebed.expressions.text_limits import check_size

_FEW = 1 << 31
_PIECE_BYTES = 1 << 24
"""Size of the pieces in which values are converted to Python and back: Python can take 50 times the memory."""
_OBJECT_BYTES = 64
"""Estimated memory of a Python object."""


def by_distinct(function: Callable[..., Any], kind: pa.DataType, *data: Datum, with_nulls: bool = False) -> pa.Array:
    """Apply a function to each distinct combination of operands. The result is null where an operand is null, unless
    `with_nulls` is set: then the function gets None.

    The results are limited in size, as those of all functions.
    """
    columns = [datum for datum in data if isinstance(datum, pa.Array)]
    rows = len(columns[0])
    if not with_nulls and any(isinstance(datum, pa.Scalar) and not datum.is_valid for datum in data):
        return pa.nulls(rows, kind)
    values, numbers, known = distinct_rows(columns, with_nulls=with_nulls)
    if not len(values[0]):
        return pa.nulls(rows, kind)
    count = len(values[0])
    constants = [None if isinstance(datum, pa.Array) else datum.as_py() for datum in data]
    step = max(1, count * _PIECE_BYTES // max(_PIECE_BYTES, sum(map(content_bytes, values))))
    results = _Results(kind, rows)
    for start in range(0, count, step):
        distinct = iter(values)
        size = min(step, count - start)
        lists = [
            next(distinct).slice(start, size).to_pylist() if isinstance(datum, pa.Array) else [value] * size
            for datum, value in zip(data, constants, strict=True)
        ]
        for operands in zip(*lists, strict=True):
            results.add(function(*operands))
    array = results.array()
    check_repeated(array, numbers[known])
    return taken(array, numbers, valid=known)


@dataclass
class _Results:
    """Results of a function, which become Arrow arrays piece by piece."""

    kind: pa.DataType
    rows: int
    pieces: list[pa.Array] = field(default_factory=list)
    pending: list[Any] = field(default_factory=list)
    pending_bytes: int = 0
    nbytes: int = 0
    elements: int = 0

    def add(self, result: Any) -> None:
        """Add one result. Raise if the results are too large together."""
        self.pending.append(result)
        if not isinstance(result, str | bytes | list | tuple | dict):
            return
        nbytes, elements = _size_of(result)
        self.nbytes += nbytes
        self.elements += elements
        check_size(self.nbytes, self.rows)
        check_elements(self.elements, self.rows)
        self.pending_bytes += nbytes + elements * _OBJECT_BYTES
        if self.pending_bytes > _PIECE_BYTES:
            self._flush()

    def array(self) -> pa.Array:
        """Return all results."""
        self._flush()
        return pa.concat_arrays(self.pieces)

    def _flush(self) -> None:
        self.pieces.append(pa.array(self.pending, self.kind))
        self.pending, self.pending_bytes = [], 0


def _size_of(value: Any) -> tuple[int, int]:
    """Return the bytes of text in a value, and the number of its elements, those of inner lists included."""
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass")), 0
    if isinstance(value, bytes):
        return len(value), 0
    if not isinstance(value, list | tuple | dict):
        return 0, 0
    sizes = [_size_of(item) for item in (value.values() if isinstance(value, dict) else value)]
    return sum(nbytes for nbytes, _ in sizes), len(sizes) + sum(elements for _, elements in sizes)


def distinct_rows(
    columns: Sequence[pa.Array], *, with_nulls: bool = False
) -> tuple[list[pa.Array], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the distinct combinations of several columns, the number of the combination of each row, and which rows
    are in one: those without nulls, or all if `with_nulls` is set.
    """
    rows = len(columns[0])
    known = np.ones(rows, dtype=np.bool_)
    if not with_nulls:
        known = np.logical_and.reduce([validity(column) for column in columns])
    places = np.flatnonzero(known)
    codes = np.zeros(len(places), dtype=np.int64)
    for column in columns:
        encoded = taken(column, places).dictionary_encode(null_encoding="encode")
        # Renumber before the product could exceed 64 bits.
        if len(codes) and int(codes.max()) >= _FEW:
            codes = np.unique(codes, return_inverse=True)[1].astype(np.int64)
        codes = codes * max(len(encoded.dictionary), 1) + fixed_width_values(encoded.indices, np.int32).astype(np.int64)
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    numbers = np.zeros(rows, dtype=np.int64)
    numbers[places] = inverse
    return [taken(column, places[first]) for column in columns], numbers, known
