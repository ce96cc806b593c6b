"""Structured Streaming queries on statebed's operators: analysed plans of Spark, translated step by step."""

from statebed.queries.api import stream, write_stream
from statebed.queries.explain import QueryExplanation, explain
from statebed.queries.job import QueryJob as Job
from statebed.queries.writer import StreamWriter

__all__ = ["Job", "QueryExplanation", "StreamWriter", "explain", "stream", "write_stream"]
