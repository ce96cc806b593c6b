"""Keyed tables: one row per key, in blocks by hash, with a time to live."""
