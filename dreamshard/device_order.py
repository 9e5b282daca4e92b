"""One order of a task's devices, whatever their numbers, where constraints tell them apart.

Searches try devices by number, so constraints that name other ones alike would end in another local optimum. This holds of
whole tables and columns, whose costs do not depend on which host a device is on; blocks of rows go by the device's number.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar, cast

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from dreamshard.legality import allowed_devices
from dreamshard.placement import Placement
from dreamshard.table_order import one_order
from dreamshard.tasks import PlacementTask

P = ParamSpec("P")
S = TypeVar("S")


def in_one_order_of_devices(
    place: Callable[Concatenate[S, PlacementTask, P], Placement],
) -> Callable[Concatenate[S, PlacementTask, P], Placement]:
    """Let a placer's method see the devices of a task in their one order; what it returns has the numbers of the task."""

    @wraps(place)
    def placed(self: S, task: PlacementTask, *args: P.args, **kwargs: P.kwargs) -> Placement:
        if task.constraints.places_freely:
            return place(self, task, *args, **kwargs)
        order = one_order_of_devices(task)
        found = place(self, _with_devices(task, order), *args, **kwargs)
        return replace(found, device=order[found.device])

    return cast(Callable[Concatenate[S, PlacementTask, P], Placement], placed)


def one_order_of_devices(task: PlacementTask) -> Int[Tensor, " D"]:
    """Numbers of the devices: the most room first, then by the tables that may be there; alike ones keep their order."""
    forbidden = ~allowed_devices(task)[one_order(task.tables)]  # [T, D]
    keys = [*forbidden.flip(0).numpy(), -task.capacity_bytes.numpy()]  # the last counts first
    return torch.from_numpy(np.lexsort(keys))


def _with_devices(task: PlacementTask, order: Int[Tensor, " D"]) -> PlacementTask:
    """The task with device `order[d]` called `d`."""
    renamed = order.argsort().tolist()
    given = task.constraints

    def all_renamed(devices_of: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        return {table: tuple(sorted(renamed[device] for device in devices)) for table, devices in devices_of.items()}

    constraints = replace(
        given,
        pinned=all_renamed(given.pinned),
        excluded=all_renamed(given.excluded),
        excluded_devices=tuple(sorted(renamed[device] for device in given.excluded_devices)),
        memory_bytes_of={renamed[device]: room for device, room in given.memory_bytes_of.items()},
    )
    return replace(task, constraints=constraints)
