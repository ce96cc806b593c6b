"""Spark's analysed plans as Python values, and their expressions as text of statebed's expression language."""
