"""Delta and Iceberg tables as streaming DataFrames, for `job.delta`, `job.iceberg` and SQL text."""

import os
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from statebed.errors import InputError
from statebed.sinks.lake import catalog_of, check_identifier
from statebed.spark.api.delta_source import NAME as DELTA_SOURCE
from statebed.spark.api.delta_source import STORAGE, DeltaSource, existing_table
from statebed.spark.api.iceberg_source import NAME as ICEBERG_SOURCE
from statebed.spark.api.iceberg_source import IcebergSource, TableAddress
from statebed.spark.api.lake_source import ALL, STARTING, starting_option
from statebed.storage.paths import local_path


def delta_frame(
    session: SparkSession,
    path: str,
    *,
    starting: str | int = ALL,
    storage_options: Mapping[str, str] | None = None,
    where: str,
) -> DataFrame:
    """Return the rows that a Delta table has, and those that are appended to it."""
    options = {f"{STORAGE}{option}": value for option, value in (storage_options or {}).items()}
    options[STARTING] = starting_option(starting, version="version", where=where)
    existing_table(path, storage_options or {})  # Spark would wrap the error of its own call in a traceback
    session.dataSource.register(DeltaSource)
    return session.readStream.format(DELTA_SOURCE).options(**options).load(path)


def iceberg_frame(
    session: SparkSession,
    table: str,
    *,
    path: str | None,
    catalog: str | Mapping[str, str] | None,
    starting: str | int = ALL,
    where: str,
) -> DataFrame:
    """Return the rows that an Iceberg table has, and those that are appended to it."""
    check_identifier(table, where=where)
    fix = "job.iceberg('rides.trips', path='lake'), or catalog={'type': 'rest', 'uri': '...'}"
    path = None if path is None else local_path(os.fspath(path))
    address = TableAddress(table, catalog_of(path, catalog, where=where, fix=fix))
    if path is not None and not Path(path, "catalog.db").exists():  # pyiceberg would create it
        raise InputError("there is no Iceberg catalog in this folder", where=path, fix=fix)
    address.load()
    options = address.options | {STARTING: starting_option(starting, version="snapshot", where=where)}
    session.dataSource.register(IcebergSource)
    return session.readStream.format(ICEBERG_SOURCE).options(**options).load(table)
