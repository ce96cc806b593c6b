"""Sinks: destinations that the outbox of committed epochs is published to."""

from statebed.sinks.base import BaseSink
from statebed.sinks.console import ConsoleSink
from statebed.sinks.debezium import Envelope
from statebed.sinks.debezium_files import DebeziumFilesSink
from statebed.sinks.function import FunctionSink
from statebed.sinks.memory_sink import MemorySink
from statebed.sinks.parquet_table import ParquetTableSink, read_table, table_files
from statebed.sinks.transformed import TransformedSink
from statebed.sinks.two_phase import TwoPhaseSink

__all__ = [
    "BaseSink",
    "ConsoleSink",
    "DebeziumFilesSink",
    "Envelope",
    "FunctionSink",
    "MemorySink",
    "ParquetTableSink",
    "TransformedSink",
    "TwoPhaseSink",
    "read_table",
    "table_files",
]
