"""State and its history as values to look at: jobs, epochs, operators, tables, sinks. Nothing here writes."""

from statebed.inspect.scan import FileScan, Scan
from statebed.inspect.state_diff import StateDiff, diff_state
from statebed.inspect.state_table import StateTable, read_state

__all__ = ["FileScan", "Scan", "StateDiff", "StateTable", "diff_state", "read_state"]
