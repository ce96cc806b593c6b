"""Bytes: the protobuf schema, names of objects, sealed messages, schemas, segments, the key hash.

docs/format.md is the specification. Nothing here does I/O; each module is imported by its own name.
"""
