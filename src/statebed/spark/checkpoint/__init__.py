"""Spark's own checkpoint folder, derived from the records."""
