"""Segments and where they live: memory, local disk, object store."""
