"""One DuckDB for all tests of a process: making a database takes 40 ms of processor time, a cursor of it 2."""

import functools

import duckdb


def cursor() -> duckdb.DuckDBPyConnection:
    """A connection with tables, temporary macros and settings of its own; leaving its `with` block forgets them."""
    return _database().cursor()


@functools.cache
def _database() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(config={"threads": 1})
