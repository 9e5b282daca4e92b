"""Heuristics: place tables in descending order of one figure, each on the legal device with the smallest sum of it.

The four greedy ones are those of DreamShard's evaluation (section 4.1 of the paper, `sharders.py` of the authors' program),
ties included; `random` draws a legal device. Tables that are to be together count as one.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from dreamshard.files import digest
from dreamshard.placement import Placement
from dreamshard.placer import OrderedPlacer
from dreamshard.search.packing import PlacementLimits, packed, packed_by_size
from dreamshard.tasks import PlacementTask

HEURISTICS = ("size_greedy", "dim_greedy", "lookup_greedy", "size_lookup_greedy")
"""Names of the greedy heuristics; a placer has to beat the best of them on a set of tasks."""

_SEED_STEP = 0x9E3779B1  # odd, so that no two seeds give one generator


class HeuristicPlacer(OrderedPlacer):
    """Places whole tables one after another, and packs them if one fits nowhere; raises as `packed`."""

    name: str

    def place_ordered(self, task: PlacementTask, budget_ms: float | None) -> Placement:
        """See `OrderedPlacer`."""
        device = self.filled(task, PlacementLimits.of(task))
        return Placement.whole(packed(task) if device is None else device, task.num_devices)

    @abstractmethod
    def filled(self, task: PlacementTask, limits: PlacementLimits) -> Int[Tensor, " T"] | None:
        """The device of each table; None if a table fits nowhere."""


@dataclass(frozen=True)
class RandomPlacer(HeuristicPlacer):
    """A uniformly random legal device for each table; the same tables get the same placement, whatever the task's name."""

    seed: int = 0
    name: str = "random"

    def filled(self, task: PlacementTask, limits: PlacementLimits) -> Int[Tensor, " T"] | None:
        """See `HeuristicPlacer`."""
        tables = task.tables
        figures = (tables.rows, tables.dim, tables.pooling_factor, tables.lookups, tables.unique_rows)
        key = int(digest(b"".join(figure.numpy().tobytes() for figure in figures))[:8], 16) + task.num_devices
        generator = torch.Generator().manual_seed((key + self.seed * _SEED_STEP) % 2**32)  # it reads 32 bits of a seed
        rank = torch.rand(len(tables), task.num_devices, generator=generator).double().numpy()  # [T, D]
        order = torch.randperm(len(tables), generator=generator).numpy()
        return limits.filled(order, np.ones(len(tables)), rank=rank)


@dataclass(frozen=True)
class GreedyPlacer(HeuristicPlacer):
    """Descending by one figure per table, each to the legal device with the smallest sum of it.

    Of tables with the same figure the largest comes first, then the last one; of such devices the emptiest, then the first.
    """

    name: str
    orders_tables: ClassVar[bool] = False  # of equal tables the published heuristics take the last

    def filled(self, task: PlacementTask, limits: PlacementLimits) -> Int[Tensor, " T"] | None:
        """See `HeuristicPlacer`."""
        rows, dim = task.tables.rows.numpy(), task.tables.dim.numpy()
        lookup = dim * task.tables.pooling_factor.double().numpy()
        figures = ((rows * dim).astype(np.float64), dim.astype(np.float64), lookup, lookup * np.log10(rows))
        figure = dict(zip(HEURISTICS, figures, strict=True))[self.name]  # [T]
        order = np.lexsort((np.arange(len(figure)), task.table_bytes.numpy(), figure))[::-1]
        return limits.filled(order, figure)


def baselines(seed: int = 0) -> dict[str, HeuristicPlacer]:
    """Random and the four heuristics, by name."""
    return {"random": RandomPlacer(seed)} | {name: GreedyPlacer(name) for name in HEURISTICS}


def heuristic_starts(task: PlacementTask) -> list[Int[Tensor, " T"]]:
    """Devices of the tables by random and the heuristics, to start a search from; by size if one of them fails."""
    limits = PlacementLimits.of(task)
    starts = [placer.filled(task, limits) for placer in baselines().values()]
    if any(device is None for device in starts):
        starts.append(packed_by_size(task))
    return [device for device in starts if device is not None]
