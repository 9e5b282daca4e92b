"""A placement as a file: `dreamshard place` writes it, a trainer or a later `--current` reads it.

A plan names tables and column ranges, so it is complete without the task. `dreamshard.torchrec` has TorchRec's form.

plan_file     its content, written and read
making        plans from placements
current_plan  the plan in use as a placer
"""

from dreamshard.plan.current_plan import CurrentPlan
from dreamshard.plan.making import make_plan, with_origin
from dreamshard.plan.plan_file import Plan, Shard, parse_plan, read_plan

__all__ = ["CurrentPlan", "Plan", "Shard", "make_plan", "parse_plan", "read_plan", "with_origin"]
