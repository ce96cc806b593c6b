"""State and its history as values to look at: jobs, epochs, operators, tables, sinks. Nothing here writes."""

from statebed.inspect.tables import FileScan, Scan, StateDiff, StateTable, diff_state, read_state

__all__ = ["FileScan", "Scan", "StateDiff", "StateTable", "diff_state", "read_state"]
