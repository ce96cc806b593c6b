"""Subtasks: run one subtask of one epoch, rows in and files and a report out; and compact its files."""

from statebed.subtasks.compaction import CompactedSubtask, CompactionTask, compact_subtask
from statebed.subtasks.subtask import SubtaskReport, SubtaskTask, run_subtask

__all__ = ["CompactedSubtask", "CompactionTask", "SubtaskReport", "SubtaskTask", "compact_subtask", "run_subtask"]
