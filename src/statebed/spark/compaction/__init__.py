"""Compaction on Spark, in rounds alongside the epochs."""
