"""Read-only views of state and its history: jobs, epochs, operators, tables, sinks."""

from statebed.inspect.positions import Positions, read_positions
from statebed.inspect.tables import FileScan, Scan, StateDiff, StateTable, diff_state, read_state

__all__ = ["FileScan", "Positions", "Scan", "StateDiff", "StateTable", "diff_state", "read_positions", "read_state"]
