"""Subtasks: one subtask of one epoch, from input rows to files and a report, and the compaction of its files."""

from statebed.subtasks.compaction import CompactedSubtask, CompactionTask, compact_subtask
from statebed.subtasks.subtask import SubtaskReport, SubtaskTask, run_subtask

__all__ = ["CompactedSubtask", "CompactionTask", "SubtaskReport", "SubtaskTask", "compact_subtask", "run_subtask"]
