"""Tables for queries of SQL text, and what an error about one of them must show."""

from pathlib import Path
from typing import Any

import pytest

import statebed as sb
from statebed.errors import InputError

BIDS = """
CREATE TABLE bids (auction BIGINT, price BIGINT, note STRING, ts TIMESTAMP, WATERMARK FOR ts AS ts)
WITH (connector = 'datagen');
CREATE TABLE out (auction BIGINT, n BIGINT) WITH (connector = 'sqlite', path = 'x.db');
CREATE TABLE black WITH (connector = 'blackhole');
"""


def check_mistake(spark: Any, state: Path, text: str, *, what: str, place: str, fix: str) -> None:
    """Assert that statements over the tables are refused with these words, and with carets below `place`."""
    job = sb.Job("wrong", state=state, spark=spark)
    with pytest.raises(InputError) as raised:
        job.execute(BIDS + text, file="p.sql")
    error = raised.value
    assert what in error.what
    assert fix in error.fix
    where, line, carets = error.where.splitlines()
    assert where.startswith("p.sql, line ")
    assert line[carets.index("^") :].startswith(place), error
