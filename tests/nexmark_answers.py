"""DuckDB's answers to the Nexmark queries over all rows at once, and how others are compared with them."""

from collections.abc import Mapping, Sequence

import duck
import numpy as np
import pyarrow as pa
import pytest

from examples.nexmark.reference import REFERENCE


def expected(query: str, epochs: Sequence[Mapping[str, pa.Table]]) -> pa.Table:
    """DuckDB's answer over the rows of all epochs."""
    with duck.cursor() as connection:
        for name in epochs[0]:
            rows = pa.concat_tables([epoch[name] for epoch in epochs])
            connection.register(name, without_zones(rows))
        return connection.sql(REFERENCE[query]).to_arrow_table()


def without_zones(rows: pa.Table) -> pa.Table:
    """Timestamps in UTC as plain ones: the answer does not depend on DuckDB's time zones."""
    fields = [
        field.with_type(pa.timestamp("us")) if pa.types.is_timestamp(field.type) else field for field in rows.schema
    ]
    return rows.cast(pa.schema(fields))


def in_order(rows: pa.Table) -> pa.Table:
    """Sort by all columns, floats last: they may differ in the last digits."""
    names = sorted(rows.column_names, key=lambda name: (pa.types.is_floating(rows.schema.field(name).type), name))
    return rows.select(names).sort_by([(name, "ascending") for name in names])


def assert_same(found: pa.Table, wanted: pa.Table) -> None:
    found = without_zones(found)
    assert set(found.column_names) == set(wanted.column_names)
    assert found.num_rows == wanted.num_rows
    found, wanted = in_order(found), in_order(wanted.select(found.column_names).cast(found.schema))
    for name in found.column_names:
        if pa.types.is_floating(found.schema.field(name).type):
            np.testing.assert_allclose(found[name].to_numpy(), wanted[name].to_numpy(), rtol=1e-9, atol=0)
        elif not found[name].equals(wanted[name]):
            pairs = zip(found[name].to_pylist(), wanted[name].to_pylist(), strict=True)
            differing = [pair for pair in pairs if pair[0] != pair[1]]
            pytest.fail(f"{name}, found and wanted: {differing[:3]}")
