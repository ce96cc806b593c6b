"""Functions that only Python computes, applied once per distinct combination of operands instead of once per row."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.columns import fixed_width_values, validity
from statebed.expressions.list_parts import taken
from statebed.expressions.terms import Datum
from statebed.expressions.text_limits import check_size

_FEW = 1 << 31


def by_distinct(function: Callable[..., Any], kind: pa.DataType, *data: Datum, with_nulls: bool = False) -> pa.Array:
    """Apply a function to each distinct combination of operands. The result is null where an operand is null, unless
    `with_nulls` is set: then the function gets None.

    The texts that the function returns are limited in size, as those of all functions.
    """
    columns = [datum for datum in data if isinstance(datum, pa.Array)]
    rows = len(columns[0])
    if not with_nulls and any(isinstance(datum, pa.Scalar) and not datum.is_valid for datum in data):
        return pa.nulls(rows, kind)
    values, numbers, known = distinct_rows(columns, with_nulls=with_nulls)
    if not len(values[0]):
        return pa.nulls(rows, kind)
    count = len(values[0])
    distinct = iter(values)
    lists = [next(distinct).to_pylist() if isinstance(datum, pa.Array) else [datum.as_py()] * count for datum in data]
    results, total = [], 0
    for operands in zip(*lists, strict=True):
        result = function(*operands)
        results.append(result)
        total += len(result) if isinstance(result, str | bytes) else 0
        check_size(total, rows)
    if kind in (pa.string(), pa.binary()):
        sizes = np.array([len(result or "") for result in results])
        check_size(int(sizes[numbers[known]].sum()), rows)
    return taken(pa.array(results, kind), numbers, valid=known)


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
