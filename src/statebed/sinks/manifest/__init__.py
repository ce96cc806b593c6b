"""Manifest of a table of files: a log of sealed entries that defines which files the table consists of.

- `open`: a run starts to write; entries of older runs are refused from then on; contains the Arrow schema.
- `epoch`: the files of one epoch become visible, all at once.
- `rollback`: the files of epochs after `epoch` are no longer visible.
"""

from statebed.sinks.manifest.entries import EPOCH_FOLDER, VERSION, Entry, TableFile, epoch_folder
from statebed.sinks.manifest.manifest import Manifest
from statebed.sinks.manifest.table_reader import RESTORE, read_consistently, read_file
from statebed.sinks.manifest.table_state import TableState, decode_schema, encode_schema
from statebed.sinks.manifest.verification import TableFinding, TableVerification, verify_table

__all__ = [
    "EPOCH_FOLDER",
    "RESTORE",
    "VERSION",
    "Entry",
    "Manifest",
    "TableFile",
    "TableFinding",
    "TableState",
    "TableVerification",
    "decode_schema",
    "encode_schema",
    "epoch_folder",
    "read_consistently",
    "read_file",
    "verify_table",
]
