"""Delta and Iceberg tables of the sinks, read by Spark. Runs in `make test-versions`: Spark 4.3 has no such readers."""

import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from lake_tables import ICEBERG_TABLE, Lake
from published import publication

from scripts.kafka_broker import class_path

READERS = "4.1"
"""Version of Spark that the readers in requirements/jars.toml are made for."""
pytestmark = pytest.mark.skipif(
    not pyspark.__version__.startswith(READERS), reason=f"the readers of lakehouse tables are those of Spark {READERS}"
)
COLUMNS = pa.schema(
    [("k", pa.string()), ("n", pa.int64()), ("ts", pa.timestamp("us", "UTC")), ("price", pa.decimal128(10, 2))]
)


def changes(*rows: tuple[str, int, int]) -> pa.Table:
    """Build changes from keys, numbers and weights; times and prices follow from the numbers."""
    keys, numbers, weights = zip(*rows, strict=True)
    times = pa.array([1_700_000_000_000_001 + 86_400_000_000 * number for number in numbers], pa.timestamp("us", "UTC"))
    prices = pa.array([Decimal(number) / 4 for number in numbers], pa.decimal128(10, 2))
    return pa.table({"k": keys, "n": numbers, "ts": times, "price": prices, "_weight": pa.array(weights, pa.int64())})


EPOCHS = {
    2: [changes(("a", 1, 1), ("b", 2, 1))],
    3: [changes(("a", 1, -1), ("a", 5, 1)), changes(("c", 3, 1))],
    4: [changes(("b", 2, -1))],
}
FORMS: dict[str, dict[str, Any]] = {
    "appended": {"form": "weights"},
    "by key": {"key": ("k",)},
    "partitioned": {"form": "weights", "partition_by": "k"},
}


@pytest.mark.parametrize("form", FORMS)
def test_spark_reads_the_rows_that_the_sinks_have_written(tmp_path: Path, form: str) -> None:
    lakes = {name: Lake(name, tmp_path / name) for name in ("delta", "iceberg")}
    for lake in lakes.values():
        sink = lake.sink(COLUMNS, changes=True, **FORMS[form])
        sink.check(last_number=0)
        sink.probe()
        sink.open(1)
        for epoch, tables in EPOCHS.items():
            sink.publish(publication(1, epoch, *tables))
    folders = [str(lake.path) for lake in lakes.values()]
    arguments = [class_path("delta-reader", "iceberg-reader", separator=","), *folders, ICEBERG_TABLE]
    program = Path(__file__).with_name("lake_reader.py")
    done = subprocess.run(
        [sys.executable, program, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    printed = json.loads(done.stdout.splitlines()[-1])
    assert printed == {name: plain_rows(lake.read()) for name, lake in lakes.items()}
    assert [len(rows) for rows in printed.values()] == ([2, 2] if form == "by key" else [6, 6])


def plain_rows(table: pa.Table) -> list[list[object]]:
    """Return rows as lake_reader.py prints them."""
    for name, kind in (("ts", pa.int64()), ("price", pa.string())):
        table = table.set_column(table.schema.get_field_index(name), name, table[name].cast(kind))
    return sorted((list(row.values()) for row in table.to_pylist()), key=repr)
