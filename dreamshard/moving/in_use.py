"""The plan in use as a placement of today's tables."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dreamshard.constraints import UNCONSTRAINED
from dreamshard.moving.blocks import Block, blocks_of
from dreamshard.placement import Placement
from dreamshard.plan import Plan
from dreamshard.tasks import PlacementTask


@dataclass(frozen=True, kw_only=True)
class InUse:
    """What is in use of a task's tables, and what is not.

    Attributes:
        task: the tables that are there already, as they are, on the devices of the plan in use, without constraints.
        placement: of these tables.
        new: tables that the plan in use does not have.
        changed: tables that have other rows or columns in it, and are loaded anew.
        removed: tables that only the plan in use has.
        blocks: of the tables that are there already.
    """

    task: PlacementTask
    placement: Placement
    new: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    blocks: Mapping[str, list[Block]]

    @property
    def loaded(self) -> tuple[str, ...]:
        """Tables that are loaded rather than moved."""
        return self.new + self.changed


def in_use(plan: Plan, task: PlacementTask, rows_before: Mapping[str, int] | None = None) -> InUse:
    """What `plan` holds of the task's tables.

    Args:
        plan: in use.
        task: of today's tables.
        rows_before: of the tables that the plan was made for, by name, where the plan does not say; those that neither
            names have not changed.

    Raises:
        ValueError: the plan has none of the tables, or does not hold all of one.
    """
    by_table, tables = plan.by_table(), task.tables
    known = {**(rows_before or {}), **plan.rows}
    new, changed, same = [], [], []
    for t, (name, rows, dim) in enumerate(zip(tables.names, tables.rows.tolist(), tables.dim.tolist(), strict=True)):
        shards = by_table.get(name)
        if shards is None:
            new.append(name)
            continue
        ends = [shard.row_end for shard in shards if shard.row_end is not None]
        held_rows = known.get(name, max(ends, default=rows))
        held_dim = max(shard.column_end for shard in shards)
        if (held_rows, held_dim) == (rows, dim):
            same.append(t)
        else:
            changed.append(name)
    if len(new) == len(tables):
        raise ValueError("the plan in use places none of these tables, so nothing moves; give the plan of this model")
    if not same:
        raise ValueError(
            f"the plan in use has other sizes of all tables that it shares with these ({', '.join(changed[:5])}), so "
            "there is nothing to keep; place them without it"
        )
    kept = replace(
        task,
        tables=tables.select(same),
        num_devices=plan.num_devices,
        memory_bytes=2**62,
        constraints=UNCONSTRAINED,
        devices_per_host=task.devices_per_host if plan.devices_per_host is None else plan.devices_per_host,
    )
    placement = plan.placement(kept.tables)
    return InUse(
        task=kept,
        placement=placement,
        new=tuple(new),
        changed=tuple(changed),
        removed=tuple(sorted(by_table.keys() - set(tables.names))),
        blocks=blocks_of(kept, placement),
    )
