"""Storage format: the protobuf schema, object names, sealed messages, schemas, segments, the key hash.

docs/format.md is the specification. Nothing here does I/O; each module is imported by its own name.
"""
