"""Tables in SQL databases, with the epoch in the same transaction."""

from statebed.sinks.sql.database import Database, TableName
from statebed.sinks.sql.postgres import Postgres
from statebed.sinks.sql.sql_table import SqlTable, SqlTableSink
from statebed.sinks.sql.sqlite import SQLite

__all__ = ["Database", "Postgres", "SQLite", "SqlTable", "SqlTableSink", "TableName"]
