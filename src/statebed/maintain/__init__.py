"""Maintenance of a job: repair, savepoints, clean-up, compaction, rescaling, stopping; through the live run or in a
separate one.
"""

from statebed.maintain.cleanup import Garbage, RemovedFiles, find_garbage, remove_garbage
from statebed.maintain.migration import OutdatedTable, find_outdated, load_type, migrate_offline
from statebed.maintain.repair import RepairPlan, plan_repair, repair
from statebed.maintain.rescale import rescale_offline
from statebed.maintain.rewrite import RewriteResult, TableRewrite, compact_offline
from statebed.maintain.savepoints import Savepoint, create_savepoint, drop_savepoint, list_savepoints, stop_job
from statebed.maintain.tool_runs import DEFAULT_TIMEOUT_S, CommittedChange, Through, carry_out, is_over, whole_head

__all__ = [
    "DEFAULT_TIMEOUT_S",
    "CommittedChange",
    "Garbage",
    "OutdatedTable",
    "RemovedFiles",
    "RepairPlan",
    "RewriteResult",
    "Savepoint",
    "TableRewrite",
    "Through",
    "carry_out",
    "compact_offline",
    "create_savepoint",
    "drop_savepoint",
    "find_garbage",
    "find_outdated",
    "is_over",
    "list_savepoints",
    "load_type",
    "migrate_offline",
    "plan_repair",
    "remove_garbage",
    "repair",
    "rescale_offline",
    "stop_job",
    "whole_head",
]
