"""Tables of SQL databases, with the epoch in the same transaction."""

from statebed.sinks.sql.database import Database, TableName
from statebed.sinks.sql.postgres import Postgres
from statebed.sinks.sql.sqlite import SQLite
from statebed.sinks.sql.table import SqlTable, SqlTableSink

__all__ = ["Database", "Postgres", "SQLite", "SqlTable", "SqlTableSink", "TableName"]
