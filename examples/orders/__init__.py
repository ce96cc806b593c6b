"""Orders and payments from a database's log, joined into a table of PostgreSQL."""
