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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dreamshard.cost_model import CostNetwork, Normaliser
from dreamshard.cost_model.compiled import DeviceLaw, Floats, Ints, jit, phases_ms
from dreamshard.cost_model.cost_network import COMPUTE
from dreamshard.placement import Columns, Placement, TableSharding
from dreamshard.placer import OrderedPlacer
from dreamshard.search.packing import packed
from dreamshard.shards import Shards
from dreamshard.tables import DIM_MULTIPLE
from dreamshard.tasks import PlacementTask

LIMITS = (*np.linspace(1.0, 1.5, 11).tolist(), float("inf"))
"""Limits on a device's sum of dims, relative to the mean over devices."""

_ROUNDS, _BEAM, _HALVED = 10, 3, 10

ShardList = tuple[Columns, ...]
"""Ranges of columns of each table; each range is a shard."""


class EncodedShards(NamedTuple):
    """`C` alternative lists of `S` shards each; `dim` counts columns, `compute_ms` is of each shard alone on a device."""

    latents: Float[Tensor, "C S L"]
    dim: Int[Tensor, "C S"]
    shard_bytes: Int[Tensor, "C S"]
    compute_ms: Float[Tensor, "C S"]


@torch.no_grad()
def encoded(
    task: PlacementTask, lists: Sequence[ShardList], network: CostNetwork, normaliser: Normaliser
) -> EncodedShards:
    """All lists' shards; a table that is split alike in several lists is encoded once."""
    first, count = {}, 0  # number of the first shard of a table and its ranges
    for key in dict.fromkeys((t, ranges) for own in lists for t, ranges in enumerate(own)):
        first[key], count = count, count + len(key[1])
    index = [[first[t, ranges] + k for t, ranges in enumerate(own) for k in range(len(ranges))] for own in lists]
    shardings = ((t, TableSharding.by_columns(ranges, (0,) * len(ranges))) for t, ranges in first)
    shards, _ = Shards.of_tables(task, shardings, task.num_devices)
    latents = network.encode(normaliser(shards.tables), network.ratios(task, shards.tables))
    compute_ms = network.phases_ms(latents[:, None])[:, 0, COMPUTE].sum(dim=-1)
    found = (latents, shards.tables.dim, shards.device_bytes, compute_ms)
    return EncodedShards(*(each[torch.tensor(index)] for each in found))


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
        lists: list[ShardList] = [tuple(((0, dim),) for dim in task.tables.dim.tolist())]
        network, normaliser = self.cost_network.for_task(task), self.normaliser.of_task(task.tables)
        best, places, best_ms = lists[0], None, float("inf")
        for _ in range(1 + _ROUNDS * self.columns):
            shards = encoded(task, lists, network, normaliser)
            device, cost_ms = grid_search(network, shards, task.capacity_bytes)
            beam = torch.argsort(cost_ms, stable=True)[:_BEAM].tolist()
            if float(cost_ms[beam[0]]) < best_ms:
                best, places, best_ms = lists[beam[0]], device[beam[0]].tolist(), float(cost_ms[beam[0]])
            halved = [_halved(lists[c], shards.compute_ms[c], shards.shard_bytes[c]) for c in beam]
            lists = list(dict.fromkeys(each for group in halved for each in group))
            if not lists:
                break
        if places is None:
            return Placement.whole(packed(task), task.num_devices)
        left = iter(places)
        tables = tuple(TableSharding.by_columns(ranges, [next(left) for _ in ranges]) for ranges in best)
        return Placement(tables, task.num_devices, task.num_devices)


@torch.no_grad()
def grid_search(
    network: CostNetwork, shards: EncodedShards, capacity_bytes: Int[Tensor, " D"]
) -> tuple[Int[Tensor, "C S"], Float[Tensor, " C"]]:
    """The cheapest of the greedy placements under each limit, for each alternative.

    Returns:
        Device of each shard, and predicted overall milliseconds, infinite if nothing fits under any limit.
    """
    latents, dims, sizes = shards.latents.double().numpy(), shards.dim.numpy(), shards.shard_bytes.numpy()
    (alternatives, num_shards), num_devices, capacity = dims.shape, len(capacity_bytes), capacity_bytes.numpy()
    law, order = network.law(num_devices), torch.argsort(shards.compute_ms, dim=1, descending=True, stable=True).numpy()
    limits = np.multiply.outer(dims.sum(axis=1) / num_devices * (1 + 1e-9), LIMITS)  # [C, G]
    device = np.zeros((*limits.shape, num_shards), np.int64)
    sums = np.zeros((*limits.shape, num_devices, latents.shape[-1]))
    fits = np.empty(limits.shape, np.bool_)
    for c, g in np.ndindex(limits.shape):
        fits[c, g] = _fill(
            law, latents[c], dims[c], sizes[c], order[c], limits[c, g], capacity, device[c, g], sums[c, g]
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
    capacity: Ints,
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
            has_room = used[d] + sizes[s] <= capacity[d] and used_dims[d] + dims[s] <= limit
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


def _halved(tables: ShardList, compute_ms: Float[Tensor, " S"], shard_bytes: Int[Tensor, " S"]) -> list[ShardList]:
    """Lists in which one of the costliest or largest shards is halved."""
    lists, shards = [], [(t, k) for t, ranges in enumerate(tables) for k in range(len(ranges))]
    largest = [torch.argsort(values, descending=True, stable=True)[:_HALVED] for values in (compute_ms, shard_bytes)]
    for s in torch.cat(largest).unique().tolist():
        t, k = shards[s]
        start, end = tables[t][k]
        middle, odd = divmod(start + end, 2)
        if not odd and (middle - start) % DIM_MULTIPLE == 0:
            ranges = (*tables[t][:k], (start, middle), (middle, end), *tables[t][k + 1 :])
            lists.append((*tables[:t], ranges, *tables[t + 1 :]))
    return lists
