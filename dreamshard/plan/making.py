"""Plans from placements: what they cost, and of what those costs are."""

from dataclasses import replace

import torch

from dreamshard.costs import PHASES, DeviceCosts
from dreamshard.measured_on import Difference, MeasuredOn, warning
from dreamshard.placement import ON_ONE_DEVICE, Placement
from dreamshard.plan.plan_file import Plan, Shard, shard_fields
from dreamshard.shards import Shards
from dreamshard.tasks import PlacementTask


def make_plan(
    task: PlacementTask,
    placement: Placement,
    placer: str,
    predicted: DeviceCosts | None = None,
) -> Plan:
    """The plan for `placement` of `task`; `predicted` holds `[D]` milliseconds per phase."""
    placed = Shards.of(task, placement)
    counts = torch.bincount(placed.device, minlength=task.num_devices)
    devices: list[dict[str, int | float]] = [
        {"memory_bytes": num_bytes, "tables": count}
        for num_bytes, count in zip(placed.memory_bytes().tolist(), counts.tolist(), strict=True)
    ]
    overall_ms = None
    if predicted is not None:
        overall_ms = round(float(predicted.overall_ms()), 4)
        for d, phases in enumerate(predicted.phases_ms().tolist()):
            devices[d] |= {f"{phase}_ms": round(ms, 4) for phase, ms in zip(PHASES, phases, strict=True)}
    all_rows = dict(zip(task.tables.names, task.tables.rows.tolist(), strict=True))
    by_name = dict(zip(task.tables.names, placement.tables, strict=True))
    shards = []
    for name, device, (first, last), (start, end) in shard_fields(task, placement):
        sharding = by_name[name]
        shards.append(
            Shard(
                table=name,
                device=device,
                column_start=start,
                column_end=end,
                row_start=first,
                row_end=None if last - first == all_rows[name] else last,
                sharding_type=None if sharding.sharding_type in ON_ONE_DEVICE else sharding.sharding_type,
                cached_share=sharding.cached_share,
            )
        )
    plan = Plan(
        num_devices=task.num_devices,
        placer=placer,
        shards=tuple(shards),
        overall_ms=overall_ms,
        devices=tuple(devices),
        rows=all_rows,
    )
    return replace(plan, devices_per_host=placement.devices_per_host) if plan.shards_otherwise else plan


def with_origin(
    plan: Plan,
    task: PlacementTask,
    costs_of: MeasuredOn | None,
    *,
    hardware: str | None = None,
    called: str | None = None,
    knows_topology: bool = False,
) -> Plan:
    """The plan with what its costs are of, and a warning where the task asks for something else.

    Args:
        plan: whose costs are predicted.
        task: that it places.
        costs_of: None where the placer's files do not say.
        hardware: name of the hardware that the plan is for; None where that is not said.
        called: how the user calls that hardware, e.g. a file's path.
        knows_topology: as in `MeasuredOn.differences`.
    """
    if costs_of is None:
        differs: list[Difference] = ["hardware"] if hardware else []
    else:
        differs = costs_of.differences(task, hardware, knows_topology=knows_topology)
    text = warning(costs_of, task, called or hardware, differs)
    return replace(plan, costs_of=costs_of, differs_in=tuple(differs), warning=text)
