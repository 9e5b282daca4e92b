"""NeuroShard's search: Zha et al., "Pre-train and Search: Efficient Embedding Table Sharding with Pre-trained Neural
Cost Models", MLSys 2023 (arXiv 2305.01868).

The inner loop is a greedy grid search of placements that balances compute and communication by two rules: shards go, in
descending order of predicted compute, to the device with the least predicted compute so far, among devices whose sum of
dims stays below a limit. The grid has 11 limits, from 1 to 1.5 times the mean sum of dims per device; the placement with
the lowest predicted overall cost is kept.

The outer loop is a beam search over column splits: from each of the 3 best lists of shards, halve each of the 10
costliest and 10 largest shards in turn, for up to 10 rounds, and judge every list by the inner loop.

Costs are predicted by DreamShard's cost network, where the paper pre-trains three models on up to 100,000 shards and as many
all-to-alls. `neuroshard` keeps tables whole, so only the inner loop runs; `neuroshard_columns` runs both loops.

Differences from the paper: equal lists are searched once. The grid also includes no limit, since the paper's search finds
nothing if one table is wider than the widest limit. If no list fits, tables are packed by size, as for every other placer.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from dreamshard.cost_model import CostNetwork, Normaliser
from dreamshard.cost_model.compiled import DeviceLaw, Floats, jit, phases_ms
from dreamshard.placement import SHARDING_TYPES, Placement, TableSharding
from dreamshard.placer import OrderedPlacer
from dreamshard.search.packing import packed
from dreamshard.shards import Shards
from dreamshard.tables import DIM_MULTIPLE
from dreamshard.tasks import PlacementTask

LIMITS = (*np.linspace(1.0, 1.5, 11).tolist(), float("inf"))
"""Limits on a device's sum of dims, relative to the mean over devices."""

_ROUNDS, _BEAM, _HALVED = 10, 3, 10

Ints = NDArray[np.int64]


class Part(NamedTuple):
    """Columns `start` to `end` (exclusive) of a table."""

    table: int
    start: int
    end: int


ShardList = tuple[Part, ...]


@dataclass(frozen=True)
class EncodedShards:
    """`C` alternative lists of `S` shards each; `dim` counts columns, `compute_ms` is of each shard alone on a device."""

    latents: Float[Tensor, "C S L"]
    dim: Int[Tensor, "C S"]
    shard_bytes: Int[Tensor, "C S"]
    compute_ms: Float[Tensor, "C S"]

    @classmethod
    def of(
        cls, task: PlacementTask, lists: Sequence[ShardList], network: CostNetwork, normaliser: Normaliser
    ) -> "EncodedShards":
        """All lists' shards; each distinct shard is encoded once."""
        distinct = {part: i for i, part in enumerate(dict.fromkeys(part for parts in lists for part in parts))}
        unlimited = replace(task, memory_bytes=sys.maxsize)  # the shards overlap, so together they need not fit
        table, start, end = torch.tensor(list(distinct)).T
        nothing = torch.zeros_like(table)
        pieces = Shards.made(
            unlimited,
            table=table,
            device=nothing,
            sharding_type=torch.full_like(table, SHARDING_TYPES.index("table_wise")),
            rows=torch.stack([nothing, task.tables.rows[table]], dim=1),
            columns=torch.stack([start, end], dim=1),
            cached_share=torch.full((len(table),), torch.nan),
            devices_per_host=task.num_devices,
        ).as_task(unlimited)
        index = torch.tensor([[distinct[part] for part in parts] for parts in lists])  # [C, S]
        latents = network.encode(normaliser(pieces.tables), network.ratios(pieces))
        compute_ms = network.phases_ms(latents[:, None])[:, 0, [0, 3]].sum(dim=-1)
        return cls(latents[index], pieces.tables.dim[index], pieces.table_bytes[index], compute_ms[index])


@dataclass(frozen=True)
class NeuroShardPlacer(OrderedPlacer):
    """Beam search over splits, greedy grid search over placements.

    Attributes:
        columns: whether tables may be split by columns; if not, only the grid search runs, on whole tables.
    """

    cost_network: CostNetwork
    normaliser: Normaliser
    columns: bool = True
    name: str = "neuroshard"

    def found(self, task: PlacementTask, budget_ms: float | None) -> Placement:
        """Raises NoPlacementError if neither the search nor packing finds room."""
        lists: list[ShardList] = [tuple(Part(t, 0, dim) for t, dim in enumerate(task.tables.dim.tolist()))]
        network, normaliser = self.cost_network.for_task(task), self.normaliser.of_task(task.tables)
        best, best_ms = None, float("inf")
        for _ in range(1 + _ROUNDS * self.columns):
            shards = EncodedShards.of(task, lists, network, normaliser)
            device, cost_ms = grid_search(network, shards, task.num_devices, task.memory_bytes)
            beam = torch.argsort(cost_ms, stable=True)[:_BEAM].tolist()
            if float(cost_ms[beam[0]]) < best_ms:
                best, best_ms = (lists[beam[0]], device[beam[0]]), float(cost_ms[beam[0]])
            halved = (_halved(lists[c], shards.compute_ms[c], shards.shard_bytes[c]) for c in beam)
            lists = list(dict.fromkeys(shard_list for group in halved for shard_list in group))
            if not lists:
                break
        if best is None:
            return Placement.whole(packed(task), task.num_devices)
        tables = []
        for _, own in groupby(zip(best[0], best[1].tolist(), strict=True), key=lambda each: each[0].table):
            held, where = zip(*own, strict=True)
            tables.append(TableSharding.by_columns(tuple((part.start, part.end) for part in held), where))
        return Placement(tuple(tables), task.num_devices, task.num_devices)


@torch.no_grad()
def grid_search(
    network: CostNetwork, shards: EncodedShards, num_devices: int, capacity_bytes: int
) -> tuple[Int[Tensor, "C S"], Float[Tensor, " C"]]:
    """The cheapest of the greedy placements under each limit, for each alternative.

    Returns:
        Device of each shard, and predicted overall milliseconds, infinite if nothing fits under any limit.
    """
    latents, dims, sizes = shards.latents.double().numpy(), shards.dim.numpy(), shards.shard_bytes.numpy()
    (alternatives, num_shards), grid, law = dims.shape, len(LIMITS), network.law(num_devices)
    order = torch.argsort(shards.compute_ms, dim=1, descending=True, stable=True).numpy()  # [C, S]
    limits = np.multiply.outer(dims.sum(axis=1) / num_devices * (1 + 1e-9), LIMITS)  # [C, G]
    device = np.zeros((alternatives, grid, num_shards), np.int64)
    sums = np.zeros((alternatives, grid, num_devices, latents.shape[-1]))
    fits = np.empty((alternatives, grid), np.bool_)
    for c in range(alternatives):
        for g in range(grid):
            fits[c, g] = _fill(
                law, latents[c], dims[c], sizes[c], order[c], limits[c, g], capacity_bytes, device[c, g], sums[c, g]
            )
    cost = network.overall_ms(torch.from_numpy(sums).float()).masked_fill(torch.from_numpy(~fits), torch.inf)  # [C, G]
    best = torch.arange(alternatives), cost.argmin(dim=1)
    return torch.from_numpy(device)[best], cost[best]


@jit
def _fill(
    law: DeviceLaw,
    latents: Floats,
    dims: Ints,
    sizes: Ints,
    order: Ints,
    limit: float,
    capacity: int,
    device: Ints,
    sums: Floats,
) -> bool:
    """Write a greedy placement and the loads of its devices; false if a shard finds no room within the limit on dims."""
    num_devices, size = sums.shape
    used, used_dims = np.zeros(num_devices, np.int64), np.zeros(num_devices, np.int64)
    held_ms, phases = np.zeros(num_devices), np.zeros(3)
    for s in order:
        chosen = -1
        for d in range(num_devices):
            has_room = used[d] + sizes[s] <= capacity and used_dims[d] + dims[s] <= limit
            if has_room and (chosen < 0 or held_ms[d] < held_ms[chosen]):
                chosen = d
        if chosen < 0:
            return False
        device[s] = chosen
        used[chosen] += sizes[s]
        used_dims[chosen] += dims[s]
        for x in range(size):
            sums[chosen, x] += latents[s, x]
        phases_ms(law, sums[chosen], phases)
        held_ms[chosen] = phases[0] + phases[1]
    return True


def _halved(parts: ShardList, compute_ms: Float[Tensor, " S"], shard_bytes: Int[Tensor, " S"]) -> list[ShardList]:
    """Lists in which one of the costliest or largest of `parts` is halved."""
    lists = []
    largest = (torch.argsort(values, descending=True, stable=True)[:_HALVED] for values in (compute_ms, shard_bytes))
    for s in sorted({number for numbers in largest for number in numbers.tolist()}):
        part = parts[s]
        middle, odd = divmod(part.start + part.end, 2)
        if not odd and (middle - part.start) % DIM_MULTIPLE == 0:
            pair = Part(part.table, part.start, middle), Part(part.table, middle, part.end)
            lists.append((*parts[:s], *pair, *parts[s + 1 :]))
    return lists
