"""Looking after a job: repair, savepoints, garbage, merging and re-assigning state, stopping; beside it or alone."""

from statebed.maintain.repair import RepairPlan, plan_repair, repair
from statebed.maintain.runs import Changed, Through, carry_out

__all__ = ["Changed", "RepairPlan", "Through", "carry_out", "plan_repair", "repair"]
