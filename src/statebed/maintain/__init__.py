"""Looking after a job: repair, savepoints, garbage, merging and re-assigning state, stopping; beside it or alone."""

from statebed.maintain.garbage import Garbage, Removed, collect_garbage, find_garbage
from statebed.maintain.migrating import Outdated, find_outdated, load_type, migrate_offline
from statebed.maintain.repair import RepairPlan, plan_repair, repair
from statebed.maintain.rescaling import rescale_offline
from statebed.maintain.rewriting import Rewritten, TableRewrite, compact_offline
from statebed.maintain.runs import DEFAULT_TIMEOUT_S, Changed, Through, carry_out, is_over, whole_head
from statebed.maintain.savepoints import Savepoint, create_savepoint, drop_savepoint, list_savepoints, stop_job

__all__ = [
    "DEFAULT_TIMEOUT_S",
    "Changed",
    "Garbage",
    "Outdated",
    "Removed",
    "RepairPlan",
    "Rewritten",
    "Savepoint",
    "TableRewrite",
    "Through",
    "carry_out",
    "collect_garbage",
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
    "repair",
    "rescale_offline",
    "stop_job",
    "whole_head",
]
