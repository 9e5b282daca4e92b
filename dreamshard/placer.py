"""Placers: the protocol of heuristics, trained and published placers, and the canonical order in which they see a task."""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from dreamshard.placement import ON_ONE_DEVICE, Placement
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask, allowed_devices


class NoPlacementError(ValueError):
    """A placer found no legal placement.

    Attributes:
        is_proved: whether none exists.

    >>> ds.place(replace(task, memory_bytes=2**20), "a100")
    Traceback (most recent call last):
    dreamshard.placer.NoPlacementError: ...
    """

    def __init__(self, message: str, *, is_proved: bool = False) -> None:
        super().__init__(message)
        self.is_proved = is_proved


@runtime_checkable
class Placer(Protocol):
    """Turns a task into a placement.

    >>> class First:
    ...     name = "first"
    ...     def place(self, task, budget_ms=None):
    ...         return ds.Placement.whole([0] * len(task.tables), task.num_devices)
    >>> ds.place(task, First()).tables["item"].where
    (0,)
    """

    @property
    def name(self) -> str:
        """The placer's name in reports and on the command line."""

    def place(self, task: PlacementTask, budget_ms: float | None = None) -> Placement:
        """Place a task's tables by the sharding types that the task's constraints allow and the placer knows.

        Args:
            budget_ms: work of a search: as much as an idle core does in this time, the same on any machine; None for the
                placer's own. Placers that do not search ignore it.

        Raises:
            NoPlacementError: none was found.
        """


class OrderedPlacer(ABC):
    """A placer whose placements depend neither on the order of a list of tables nor on the numbers of equal devices.

    Searches draw tables and devices by number, and sums of floating-point numbers depend on their order, so
    `place_ordered` sees every task in one canonical order.
    """

    orders_tables: ClassVar[bool] = True

    @torch.inference_mode()
    def place(self, task: PlacementTask, budget_ms: float | None = None) -> Placement:
        """See `Placer`."""
        order = table_order(task.tables) if self.orders_tables else torch.arange(len(task.tables))
        ordered = task
        if not torch.equal(order, torch.arange(len(order))):
            ordered = replace(task, tables=task.tables.select(order))
        devices = device_order(ordered)
        names = devices.tolist()
        is_other = names != sorted(names)
        if is_other:
            ordered = replace(ordered, constraints=ordered.constraints.renumbered(devices.argsort().tolist()))
        placement = self.place_ordered(ordered, budget_ms)
        tables = [placement.tables[i] for i in order.argsort().tolist()]
        if is_other:
            tables = [replace(table, where=tuple(names[place] for place in table.where)) for table in tables]
        return replace(placement, tables=tuple(tables)).on_hosts_of(task.devices_per_host)

    @abstractmethod
    def place_ordered(self, task: PlacementTask, budget_ms: float | None) -> Placement:
        """The placement of a task in canonical order; arguments and errors as for `place`."""


def table_order(tables: Tables) -> Int[Tensor, " T"]:
    """Numbers of the tables by rows, then by all other figures; by name and columns only if these are the same."""
    figures = tables.lookups, tables.unique_rows, tables.pooling_factor, tables.dim, tables.rows
    names = tables.column_ranges[:, 0].numpy(), np.array(tables.names)
    keys = *names, *(figure.numpy() for figure in figures)  # the last counts first
    return torch.from_numpy(np.lexsort(keys))


def device_order(task: PlacementTask) -> Int[Tensor, " D"]:
    """Numbers of the devices: the most memory first, then by the tables that may be there; equal ones keep their order.

    Blocks of rows go by the device's number, so devices keep theirs if tables may be spread over several.
    """
    if task.constraints.places_freely or task.constraints.all_sharding_types - set(ON_ONE_DEVICE):
        return torch.arange(task.num_devices)
    forbidden = ~allowed_devices(task)[table_order(task.tables)]  # [T, D]
    keys = [*forbidden.flip(0).numpy(), -task.capacity_bytes.numpy()]  # the last counts first
    return torch.from_numpy(np.lexsort(keys))
