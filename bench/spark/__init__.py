"""Comparison with Spark's own state stores: batch by batch, each side in processes of its own."""

from bench.spark.race import run

__all__ = ["run"]
