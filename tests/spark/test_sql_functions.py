"""CREATE FUNCTION: Python functions of a module beside the text, before the first operator, between operators and
behind the last one.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import statebed as sb
from statebed.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore::statebed.errors.UnboundedStateWarning")
MODULE = """
import pyarrow.compute as pc
import statebed as sb
from {other} import FACTOR


@sb.udf(returns="bigint")
def scaled(values):
    return pc.multiply(values, FACTOR)


@sb.udf(returns="string", concurrency=2, retries=1)
async def named(key):
    return None if key is None else f"auction-{{key}}"


def untyped(values):
    return pc.add(values, 1)


number = 3
"""
TABLES = """
CREATE TABLE bids (auction BIGINT, price BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts)
WITH (connector = 'datagen', rows-per-second = 20, rows-per-batch = 200, fields.auction.max = 3, fields.price.max = 9);
"""
QUERY = """
CREATE FUNCTION scaled AS '{module}:scaled';
CREATE FUNCTION named AS '{module}:named';
CREATE FUNCTION plus_one RETURNS BIGINT AS '{module}:untyped';
CREATE TABLE out (who STRING, auction BIGINT, price BIGINT) WITH (connector = 'parquet', path = '{folder}/out');
INSERT INTO out
SELECT named(auction), plus_one(auction), scaled(price)
FROM (SELECT auction, max(scaled(price)) AS price FROM bids WHERE plus_one(auction) > 1
      GROUP BY auction, window(ts, '2 seconds'))
WHERE scaled(auction) < 30;
"""


@pytest.fixture
def module(tmp_path: Path) -> Iterator[str]:
    """Name of a module in the folder of the text, which imports another one of that folder."""
    name, other = f"fns_{tmp_path.name}", f"other_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(MODULE.format(other=other))
    (tmp_path / f"{other}.py").write_text("FACTOR = 10\n")
    yield name
    for loaded in (name, other):
        sys.modules.pop(loaded, None)
    while str(tmp_path.resolve()) in sys.path:
        sys.path.remove(str(tmp_path.resolve()))


def test_functions_are_called_in_every_zone(spark: Any, tmp_path: Path, module: str) -> None:
    text = TABLES + QUERY.format(module=module, folder=tmp_path)
    file = tmp_path / "functions.sql"
    file.write_text(text)
    job = sb.Job("functions", state=tmp_path / "state", parallelism=2, spark=spark)
    job.execute(text, file=str(file))
    assert job.start(available_now=True).await_termination(200)
    rows = sb.read_table(str(tmp_path / "out")).to_pylist()
    assert {(row["who"], row["auction"]) for row in rows} == {("auction-1", 2), ("auction-2", 3)}
    assert all(row["price"] % 100 == 0 for row in rows)


MISTAKES = {
    "CREATE FUNCTION f AS 'no_such_module:f'": ("there is no module 'no_such_module'", "'no_such", "no_such_module.py"),
    "CREATE FUNCTION f AS '{module}:scaledd'": ("has no function 'scaledd'", "'fns_", "did you mean `scaled`?"),
    "CREATE FUNCTION f AS '{module}:number'": ("not a function", "'fns_", "the functions of the module are"),
    "CREATE FUNCTION f AS '{module}:untyped'": ("declares no type", "'fns_", "RETURNS DOUBLE"),
    "CREATE FUNCTION f RETURNS WRONG AS '{module}:untyped'": ("wrong", "WRONG", ""),
    "CREATE FUNCTION upper AS '{module}:named'": ("is a function of Spark SQL", "upper", "my_upper"),
    "CREATE FUNCTION f AS '{module}:named'; CREATE FUNCTION F AS '{module}:scaled'": ("'F' already", "F AS", "another"),
    "CREATE FUNCTION f AS '{broken}:f'": ("cannot be imported: ZeroDivisionError", "'broken_", "correct the module"),
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_in_create_function_is_shown_in_the_text(spark: Any, tmp_path: Path, module: str, text: str) -> None:
    what, place, fix = MISTAKES[text]
    broken = f"broken_{tmp_path.name}"
    (tmp_path / f"{broken}.py").write_text("1 / 0\n")
    file = tmp_path / "p.sql"
    file.write_text(text.format(module=module, broken=broken))
    job = sb.Job("wrong", state=tmp_path / "state", spark=spark)
    with pytest.raises(InputError) as raised:
        job.execute(file.read_text(), file=str(file))
    error = raised.value
    assert what in error.what
    assert fix in error.fix
    _, line, carets = error.where.splitlines()
    assert line[carets.index("^") :].startswith(place), error
