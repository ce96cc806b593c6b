"""State of operators: tables, what is live in them, and how their rows are read and written."""

from statebed.state.live_files import LiveFiles
from statebed.state.time_keyed import MAX_FILES, RowsRead, TimeKeyedTable, read_rows, write_segment

__all__ = ["MAX_FILES", "LiveFiles", "RowsRead", "TimeKeyedTable", "read_rows", "write_segment"]
