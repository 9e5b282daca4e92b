"""A placement as a file: `dreamshard place` writes it, a trainer or a later `--current` reads it.

A plan names tables and column ranges, so it is complete without the task. `dreamshard.torchrec` has TorchRec's form.

plan_file     its content, and how it is written
parsing       it from JSON that others may have written
making        plans from placements
current_plan  the plan in use as a placer
"""

from dreamshard.plan.current_plan import CurrentPlan
from dreamshard.plan.making import make_plan, with_origin
from dreamshard.plan.parsing import checked_shard, parse_plan, read_plan
from dreamshard.plan.plan_file import Plan, Shard

__all__ = ["CurrentPlan", "Plan", "Shard", "checked_shard", "make_plan", "parse_plan", "read_plan", "with_origin"]
