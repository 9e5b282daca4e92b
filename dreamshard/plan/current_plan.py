"""The plan in use as a placer, to be measured beside others."""

from dataclasses import dataclass
from itertools import pairwise

from dreamshard.placement import Placement, ShardingType, TableSharding
from dreamshard.plan.plan_file import Plan
from dreamshard.tables import columns_of
from dreamshard.tasks import PlacementTask


@dataclass(frozen=True)
class CurrentPlan:
    """A plan in use, as a placer of the model that it was made for."""

    plan: Plan
    name: str = "current plan"

    def place(self, task: PlacementTask, budget_ms: float | None = None) -> Placement:
        """The plan's placement, also if the task's tables are column shards.

        Raises:
            ValueError: the plan is for another number of devices, or lacks columns of a table.
        """
        if self.plan.num_devices != task.num_devices:
            raise ValueError(
                f"the current plan is for {self.plan.num_devices} devices, but {task.name} has {task.num_devices}; give "
                f"--devices {self.plan.num_devices}, or the plan in use on {task.num_devices}"
            )
        by_table, shardings = self.plan.by_table(), []
        if self.plan.shards_otherwise:
            raise ValueError(
                "the current plan shards some tables in other ways than whole or by columns, which are not measured beside "
                "whole tables; leave --current out, or give a plan of `dreamshard place --sharding columns`"
            )
        for name, dim in zip(task.tables.names, task.tables.dim.tolist(), strict=True):
            table, first = columns_of(name) if name not in by_table else (name, 0)
            ends, where = [0], []
            for shard in by_table.get(table, ()):
                start, end = max(shard.column_start - first, 0), min(shard.column_end - first, dim)
                if start == ends[-1] < end:
                    ends.append(end)
                    where.append(shard.device)
            if ends[-1] != dim:
                raise ValueError(
                    f"the current plan places {ends[-1]} of the {dim} columns of table {name!r}; give the plan in use for "
                    "these tables"
                )
            columns = tuple(pairwise(ends))
            is_whole = len(where) == 1
            kind: ShardingType = "table_wise" if is_whole else "column_wise"
            shardings.append(TableSharding(kind, () if is_whole else columns, tuple(where)))
        return Placement(tuple(shardings), task.num_devices, task.devices_per_host or task.num_devices)
