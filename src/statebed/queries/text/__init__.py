"""SQL text on statebed's operators: queries, and whole pipelines of tables, views and INSERTs."""
