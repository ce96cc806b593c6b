"""SQL text without Spark: statements and their places, table definitions, and the rewriting of queries for Spark."""
