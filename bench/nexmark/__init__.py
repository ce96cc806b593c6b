"""Nexmark queries as jobs on Spark, against the same questions to Spark's own operators where it has them."""

from bench.nexmark.race import run

__all__ = ["run"]
