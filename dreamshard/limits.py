"""Where the tables of a task may be by its constraints, and placements that respect them.

A search places *items*: tables, column shards, or groups of tables that share a device.
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
        item: `[T]` the item of each table or column shard.
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
    def of(
        cls, task: PlacementTask, table: Indices | None = None, shard_bytes: Indices | None = None
    ) -> "PlacementLimits":
        """Those of the task's tables, or of shards of them.

        Args:
            task: its tables may be column shards.
            table: `[S]` number of each shard's table; None for the tables themselves.
            shard_bytes: `[S]`.

        Raises:
            NoPlacementError: no device has room for tables that are to be together.
        """
        table = np.arange(len(task.tables)) if table is None else table
        shard_bytes = task.table_bytes.numpy() if shard_bytes is None else shard_bytes
        names = [parent_name(task.tables.names[t]) for t in table.tolist()]
        item = _items(task, names)
        members = np.bincount(item)
        allowed = np.ones((len(members), task.num_devices), np.bool_)
        np.logical_and.at(allowed, item, allowed_devices(task).numpy()[table])
        apart = np.zeros((len(members), len(members)), np.bool_)
        for group in task.constraints.apart:
            items = [
                np.unique(item[[t for t, each in enumerate(names) if each == name]]) for name in _held(group, names)
            ]
            for i, first in enumerate(items):
                for second in items[i + 1 :]:
                    apart[np.ix_(first, second)] = apart[np.ix_(second, first)] = True
        item_bytes, capacity_bytes = np.zeros(len(members), np.int64), task.capacity_bytes.numpy()
        np.add.at(item_bytes, item, shard_bytes)
        for i in np.flatnonzero(members > 1).tolist():
            room = int(capacity_bytes[allowed[i]].max())
            if item_bytes[i] > room:
                label = " and ".join(sorted({names[t] for t in np.flatnonzero(item == i)}))
                raise NoPlacementError(
                    f"tables {label} of {task.name} are to share a device and need {gib(int(item_bytes[i]))}, but the "
                    f"devices that may hold them have {gib(room)} at most; give those more memory, or let the tables be on "
                    "several"
                )
        return cls(item, item_bytes, capacity_bytes, allowed, apart)

    def per_table(self, device: Int[Tensor, "*S I"]) -> Int[Tensor, "*S T"]:
        """The device of each table."""
        return device[..., torch.from_numpy(self.item)]

    def per_item(self, device: Int[Tensor, "S T"]) -> Int[Tensor, "S I"]:
        """The device of each item's first table."""
        return device[:, torch.from_numpy(np.unique(self.item, return_index=True)[1])]

    def summed(self, values: Float[Tensor, "T ..."]) -> Float[Tensor, "I ..."]:
        """Values of tables, summed over each item."""
        sums = values.new_zeros(len(self.item_bytes), *values.shape[1:])
        return sums.index_add_(0, torch.from_numpy(self.item), values)

    def moves(self, items: Indices, device: Indices) -> Mask:
        """`[N, D]` whether each of `items` may move to each device, given the `device` `[I]` of all items."""
        result: Mask = np.logical_and(self.allowed[items], self._conflicts(items, device) == 0)
        return result

    def swaps(self, items: Indices, source: int, device: Indices) -> Mask:
        """`[N, I]` whether each of `items`, all on `source`, may swap with each item."""
        between = self.apart[items].astype(np.int64)  # [N, I]: the two leave each other's device
        there = self._conflicts(items, device)[:, device] - between
        here = self._conflicts(np.arange(len(device)), device)[:, source][None] - between
        allowed = self.allowed[items][:, device] & self.allowed[:, source][None]
        result: Mask = allowed & (there == 0) & (here == 0)
        return result

    def may_go(self, item: int, device: Indices) -> Mask:
        """`[D]` devices where one item may be beside the others; negative entries of `device` are nowhere yet."""
        beside = device[self.apart[item] & (device >= 0)]
        result: Mask = self.allowed[item].copy()
        result[beside] = False
        return result

    def repaired(self, device: Int[Tensor, " I"], load: Float[Tensor, " I"]) -> Int[Tensor, " I"] | None:
        """A legal placement like `device`; None where none was found.

        Devices are renamed first, since they are mostly alike. Items that have the fewest devices to choose from come next,
        then the largest. Each stays where it is if it may, or else goes to the device of the least `load`.
        """
        freedom = torch.from_numpy(self.allowed.sum(axis=1) - self.apart.sum(axis=1))
        by_size = torch.argsort(torch.from_numpy(self.item_bytes), descending=True, stable=True)
        order = by_size[torch.argsort(freedom[by_size], stable=True)]
        places = self._relabelled(device.numpy(), load.double().numpy())

        def rank(loads: NDArray[np.float64], i: int) -> NDArray[np.float64]:
            loads = loads.copy()
            loads[places[i]] = -1.0
            return loads

        return self.filled(order, rank, load)

    def repaired_shards(self, device: Indices, load: NDArray[np.float32]) -> Indices | None:
        """`repaired` by the devices `[S]` of the items' tables or shards."""
        items = self.per_item(torch.from_numpy(device)[None])[0]
        fixed = self.repaired(items, self.summed(torch.from_numpy(load)))
        return None if fixed is None else self.per_table(fixed).numpy()

    def filled(self, order: Int[Tensor, " I"], rank: Rank, load: Float[Tensor, " I"]) -> Int[Tensor, " I"] | None:
        """Put each item in `order` on the device with the least `rank` where it may be and has room; None where none."""
        added = load.double().numpy()
        device = np.full(len(order), -1, np.int64)
        loads, left = np.zeros(len(self.capacity_bytes)), self.capacity_bytes.copy()
        for i in order.tolist():
            open_to = (left >= self.item_bytes[i]) & self.may_go(i, device)
            if not open_to.any():
                return None
            choice = int(np.where(open_to, rank(loads, i), np.inf).argmin())
            device[i] = choice
            loads[choice] += added[i]
            left[choice] -= self.item_bytes[i]
        return torch.from_numpy(device)

    def _conflicts(self, items: Indices, device: Indices) -> Indices:
        """`[N, D]` number of items on each device that each of `items` may not be with."""
        if not self.apart.any():
            return np.zeros((len(items), self.allowed.shape[1]), np.int64)
        held = np.zeros((len(device), self.allowed.shape[1]), np.int64)
        held[np.arange(len(device)), device] = 1
        result: Indices = self.apart[items].astype(np.int64) @ held
        return result

    def _relabelled(self, places: Indices, load: NDArray[np.float64]) -> Indices:
        """The same with devices renamed so that the least load is where it may not be or has no room."""
        num_devices = len(self.capacity_bytes)
        holds = np.zeros((num_devices, len(places)))
        holds[places, np.arange(len(places))] = 1.0
        held_bytes = np.bincount(places, weights=self.item_bytes, minlength=num_devices)
        over = held_bytes[:, None] > self.capacity_bytes  # [D, D] old, new
        amiss = holds @ (load[:, None] * ~self.allowed) + over * (holds @ load)[:, None]
        amiss -= 1e-9 * load.sum() * np.eye(num_devices)  # devices keep their names where that is as good
        _, renamed = scipy.optimize.linear_sum_assignment(amiss)
        result: Indices = renamed[places]
        return result


def _items(task: PlacementTask, names: list[str]) -> Indices:
    """`[T]` number of each table's item, in the order of tables: groups that share a table are one."""
    leader = np.arange(len(names))
    for group in task.constraints.together:
        members = [t for t, name in enumerate(names) if name in group]
        joined = np.isin(leader, leader[members])
        if members:
            leader[joined] = leader[joined].min()
    item: Indices = np.unique(leader, return_inverse=True)[1].astype(np.int64)
    return item


def _held(group: frozenset[str], names: list[str]) -> list[str]:
    """The tables of a group that a task has."""
    return sorted(group & set(names))
