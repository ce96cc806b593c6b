"""State as tables: rows at an epoch, and changes between two epochs."""

from statebed.inspect.tables.scan import FileScan, Scan
from statebed.inspect.tables.state_diff import StateDiff, diff_state
from statebed.inspect.tables.state_table import StateTable, read_state

__all__ = ["FileScan", "Scan", "StateDiff", "StateTable", "diff_state", "read_state"]
