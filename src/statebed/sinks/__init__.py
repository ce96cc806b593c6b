"""Where output goes: sinks that publish the outbox of committed epochs."""

from statebed.sinks.function import FunctionSink
from statebed.sinks.memory import MemorySink
from statebed.sinks.parquet_table import ParquetTableSink, read_table, table_files

__all__ = ["FunctionSink", "MemorySink", "ParquetTableSink", "read_table", "table_files"]
