"""Tables in lakehouse formats, Delta and Iceberg, with the epoch in the commit that adds its rows. No JVM is needed."""

from statebed.sinks.lake.delta import DeltaLakeTable
from statebed.sinks.lake.iceberg import IcebergCatalog, IcebergLakeTable, catalog_of, check_identifier, folder_catalog
from statebed.sinks.lake.lake_sink import LakeRows, LakeSink
from statebed.sinks.lake.lake_table import LakeFile, LakeTable, Mark, TableLayout, TableVersion

__all__ = [
    "DeltaLakeTable",
    "IcebergCatalog",
    "IcebergLakeTable",
    "LakeFile",
    "LakeRows",
    "LakeSink",
    "LakeTable",
    "Mark",
    "TableLayout",
    "TableVersion",
    "catalog_of",
    "check_identifier",
    "folder_catalog",
]
