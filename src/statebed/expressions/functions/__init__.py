"""Functions and operators. Each is a builder that resolves types and returns a term with a kernel."""

import pyarrow as pa

from statebed.expressions import types
from statebed.expressions.functions import (
    arithmetic,
    bits,
    calendar,
    characters,
    comparisons,
    conditions,
    hashes,
    json_paths,
    json_structs,
    lambdas,
    lenient,
    list_sets,
    lists,
    maps,
    maths,
    nested,
    number_bases,
    number_parts,
    patterns,
    printed,
    strings,
    times,
    trigonometry,
    urls,
    zones,
)
from statebed.expressions.sites import Builder

__all__ = ["FUNCTIONS"]

_CASTS = ["boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "date", "timestamp", "binary"]
_MODULES = [
    arithmetic,
    bits,
    calendar,
    characters,
    comparisons,
    conditions,
    hashes,
    json_paths,
    json_structs,
    lambdas,
    lenient,
    list_sets,
    lists,
    maps,
    maths,
    nested,
    number_bases,
    number_parts,
    patterns,
    printed,
    strings,
    times,
    trigonometry,
    urls,
    zones,
]


FUNCTIONS: dict[str, Builder] = {
    **{name: builder for module in _MODULES for name, builder in module.BUILDERS.items()},
    **{name: times.conversion(types.NAMED[name]) for name in _CASTS},
    "decimal": times.conversion(pa.decimal128(10, 0)),
}
"""Functions and operators by name."""
