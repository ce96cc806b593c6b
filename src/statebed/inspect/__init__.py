"""Read-only views of state and its history: jobs, epochs, operators, tables, sinks."""

from statebed.inspect.tables import FileScan, Scan, StateDiff, StateTable, diff_state, read_state

__all__ = ["FileScan", "Scan", "StateDiff", "StateTable", "diff_state", "read_state"]
