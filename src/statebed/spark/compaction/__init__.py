"""Compaction on Spark, in rounds beside the epochs."""
