"""Reads a Delta and an Iceberg table with the readers that Spark has for them, and prints the rows of both as JSON.

Arguments: the jars of both readers, the Delta table, the folder of the Iceberg catalog, and the Iceberg table.
"""

import json
import sys

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension,"
    "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.catalog.default": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.default.type": "jdbc",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.shuffle.partitions": "1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def main() -> None:
    jars, delta, catalog, iceberg = sys.argv[1:]
    builder = SparkSession.builder.master("local[1]").config("spark.jars", jars)
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.sql.catalog.default.uri", f"jdbc:sqlite:{catalog}/catalog.db")
    spark = builder.config("spark.sql.catalog.default.warehouse", f"file://{catalog}").getOrCreate()
    tables = {"delta": spark.read.format("delta").load(delta), "iceberg": spark.table(f"default.{iceberg}")}
    sys.stdout.write(json.dumps({name: _rows(table) for name, table in tables.items()}) + "\n")
    spark.stop()


def _rows(table: DataFrame) -> list[list[object]]:
    columns = [_plain(name, kind) for name, kind in table.dtypes]
    return sorted(([*row] for row in table.select(*columns).collect()), key=repr)


def _plain(name: str, kind: str) -> Column:
    """Turn a column into one that JSON can hold: times into microseconds, decimals into text."""
    if kind == "timestamp":
        return F.unix_micros(name)
    return F.col(name).cast("string") if kind.startswith("decimal") else F.col(name)


if __name__ == "__main__":
    main()
