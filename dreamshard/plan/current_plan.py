"""The plan in use as a placer, to be measured beside others."""

from dataclasses import dataclass

import torch

from dreamshard.placement import ColumnShard, Placement
from dreamshard.plan.plan_file import Plan
from dreamshard.tables import columns_of
from dreamshard.tasks import PlacementTask


@dataclass(frozen=True)
class CurrentPlan:
    """A plan in use, as a placer of the model that it was made for."""

    plan: Plan
    name: str = "current plan"

    def place(self, task: PlacementTask) -> Placement:
        """The plan's placement, also where the task's tables are column shards.

        Raises:
            ValueError: the plan is for another number of devices, or lacks columns of a table.
        """
        if self.plan.num_devices != task.num_devices:
            raise ValueError(
                f"the current plan is for {self.plan.num_devices} devices, but {task.name} has {task.num_devices}, so their "
                f"costs do not compare; give --devices {self.plan.num_devices}, or the plan in use on {task.num_devices}"
            )
        by_table, columns, devices = self.plan.by_table(), [], []
        if self.plan.shards_otherwise:
            raise ValueError(
                "the current plan shards some tables in other ways than whole or by columns, which testbeds do not measure "
                "beside whole tables; leave --current out, or give a plan of `dreamshard place --sharding columns`"
            )
        for t, (name, dim) in enumerate(zip(task.tables.names, task.tables.dim.tolist(), strict=True)):
            table, first = columns_of(name) if name not in by_table else (name, 0)
            reached = 0
            for shard in by_table.get(table, ()):
                start, end = max(shard.column_start - first, 0), min(shard.column_end - first, dim)
                if start == reached < end:
                    columns.append(ColumnShard(t, start, end))
                    devices.append(shard.device)
                    reached = end
            if reached != dim:
                raise ValueError(
                    f"the current plan places {reached} of the {dim} columns of table {name!r}, so it is not a plan of this "
                    "model; give the plan that is in use for these tables"
                )
        whole = len(columns) == len(task.tables)
        return Placement(torch.tensor(devices), task.num_devices, None if whole else tuple(columns))
