"""Where whole tables may be by a task's constraints, and placements that respect them.

*Items* are placed: tables, or groups of tables that share a device.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from dreamshard.formatting import gib
from dreamshard.legality import allowed_devices
from dreamshard.placer import NoPlacementError
from dreamshard.tables import parent_name
from dreamshard.tasks import PlacementTask

Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]
Rank = Callable[[NDArray[np.float64], int], NDArray[np.float64]]


@dataclass(frozen=True)
class PlacementLimits:
    """Where `I` items may be.

    Attributes:
        item: `[T]` the item of each table.
        item_bytes: `[I]`.
        capacity_bytes: `[D]`.
        allowed: `[I, D]` devices that may hold an item.
        apart: `[I, I]` whether two items may not share a device.
    """

    item: Indices
    item_bytes: Indices
    capacity_bytes: Indices
    allowed: Mask
    apart: Mask

    @classmethod
    def of(cls, task: PlacementTask) -> "PlacementLimits":
        """Limits of a task's tables.

        Raises:
            NoPlacementError: no device has room for tables that are to be together.
        """
        names = np.array([parent_name(name) for name in task.tables.names])
        item = np.arange(len(names))
        for group in task.constraints.together:
            held = np.isin(names, list(group))
            if held.any():
                joined = np.isin(item, item[held])
                item[joined] = item[joined].min()
        item = np.unique(item, return_inverse=True)[1].astype(np.int64)
        members = np.bincount(item)
        allowed = np.ones((len(members), task.num_devices), np.bool_)
        np.logical_and.at(allowed, item, allowed_devices(task).numpy())
        apart = np.zeros((len(members), len(members)), np.bool_)
        for group in task.constraints.apart:
            tables = np.flatnonzero(np.isin(names, list(group)))
            first, second = np.meshgrid(tables, tables)
            differ = names[first] != names[second]  # columns of one table may be together
            apart[item[first[differ]], item[second[differ]]] = True
        item_bytes, capacity_bytes = np.zeros(len(members), np.int64), task.capacity_bytes.numpy()
        np.add.at(item_bytes, item, task.table_bytes.numpy())
        for i in np.flatnonzero(members > 1).tolist():
            room = int(capacity_bytes[allowed[i]].max())
            if item_bytes[i] > room:
                label = " and ".join(sorted(set(names[item == i].tolist())))
                raise NoPlacementError(
                    f"tables {label} of {task.name} are to share a device and need {gib(int(item_bytes[i]))}, but the "
                    f"devices that may hold them have at most {gib(room)}"
                )
        return cls(item, item_bytes, capacity_bytes, allowed, apart)

    def per_table(self, device: Int[Tensor, " I"]) -> Int[Tensor, " T"]:
        """The device of each table."""
        return device[torch.from_numpy(self.item)]

    def summed(self, values: Float[Tensor, " T"]) -> Float[Tensor, " I"]:
        """Values of tables, summed over each item."""
        return values.new_zeros(len(self.item_bytes)).index_add_(0, torch.from_numpy(self.item), values)

    def repaired(self, device: Int[Tensor, " T"], load: Float[Tensor, " T"]) -> Int[Tensor, " T"] | None:
        """Devices of tables in a legal placement like `device`; None if none was found.

        Devices are renamed first, since they are mostly equal. Items that have the fewest devices to choose from come next,
        then the largest. Each stays where it is if it may, or else goes to the device of the least `load`.
        """
        load = self.summed(load)
        freedom = torch.from_numpy(self.allowed.sum(axis=1) - self.apart.sum(axis=1))
        by_size = torch.argsort(torch.from_numpy(self.item_bytes), descending=True, stable=True)
        order = by_size[torch.argsort(freedom[by_size], stable=True)]
        first = np.unique(self.item, return_index=True)[1]
        places = self._renamed(device.numpy()[first], load.double().numpy())

        def rank(loads: NDArray[np.float64], i: int) -> NDArray[np.float64]:
            loads = loads.copy()
            loads[places[i]] = -1.0
            return loads

        found = self.filled(order, rank, load)
        return None if found is None else self.per_table(found)

    def filled(self, order: Int[Tensor, " I"], rank: Rank, load: Float[Tensor, " I"]) -> Int[Tensor, " I"] | None:
        """Put each item in `order` on the allowed device with room and the least `rank`; None if there is none."""
        added = load.double().numpy()
        device = np.full(len(order), -1, np.int64)
        loads, left = np.zeros(len(self.capacity_bytes)), self.capacity_bytes.copy()
        for i in order.tolist():
            open_to = (left >= self.item_bytes[i]) & self.allowed[i]
            open_to[device[self.apart[i] & (device >= 0)]] = False
            if not open_to.any():
                return None
            choice = int(np.where(open_to, rank(loads, i), np.inf).argmin())
            device[i] = choice
            loads[choice] += added[i]
            left[choice] -= self.item_bytes[i]
        return torch.from_numpy(device)

    def _renamed(self, places: Indices, load: NDArray[np.float64]) -> Indices:
        """The same with devices renamed so that the least load is where it may not be or has no room."""
        num_devices = len(self.capacity_bytes)
        holds = np.zeros((num_devices, len(places)))
        holds[places, np.arange(len(places))] = 1.0
        held_bytes = np.bincount(places, weights=self.item_bytes, minlength=num_devices)
        over = held_bytes[:, None] > self.capacity_bytes  # [D, D] old, new
        amiss = holds @ (load[:, None] * ~self.allowed) + over * (holds @ load)[:, None]
        amiss -= 1e-9 * load.sum() * np.eye(num_devices)  # devices keep their names if that is as good
        _, renamed = scipy.optimize.linear_sum_assignment(amiss)
        result: Indices = renamed[places]
        return result
