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

import math
from collections.abc import Iterator
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

LIMITS = (*np.linspace(1.0, 1.5, 11).tolist(), math.inf)
"""Limits on a device's sum of dims, relative to the mean over devices."""

_ROUNDS, _BEAM, _HALVED = 10, 3, 10

ShardList = tuple[Columns, ...]
"""Ranges of columns of each table; each range is a shard."""


class Candidate(NamedTuple):
    """A list of `S` shards in the cheapest of its greedy placements; `overall_ms` is infinite if none has room.

    `compute_ms` is of each shard alone on a device.
    """

    ranges: ShardList
    compute_ms: Float[Tensor, " S"]
    shard_bytes: Int[Tensor, " S"]
    device: Ints
    overall_ms: float


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
        found: list[Candidate] = []
        for _ in range(1 + _ROUNDS * self.columns):
            judged = [grid_search(task, ranges, network, normaliser) for ranges in lists]
            beam = sorted(judged, key=lambda each: each.overall_ms)[:_BEAM]
            found += beam[:1]
            lists = list(dict.fromkeys(ranges for each in beam for ranges in _halved(each)))
            if not lists:
                break
        best = min(found, key=lambda each: each.overall_ms)
        if best.overall_ms == math.inf:
            return Placement.whole(packed(task), task.num_devices)
        left = iter(best.device.tolist())
        tables = tuple(TableSharding.by_columns(ranges, [next(left) for _ in ranges]) for ranges in best.ranges)
        return Placement(tables, task.num_devices, task.num_devices)


@torch.no_grad()
def grid_search(task: PlacementTask, ranges: ShardList, network: CostNetwork, normaliser: Normaliser) -> Candidate:
    """The cheapest of the greedy placements under each limit."""
    shardings = ((t, TableSharding.by_columns(own, (0,) * len(own))) for t, own in enumerate(ranges))
    shards, _ = Shards.of_tables(task, shardings, task.num_devices)
    latents = network.encode(normaliser(shards.tables), network.ratios(task, shards.tables))
    compute_ms = network.phases_ms(latents[:, None])[:, 0, COMPUTE].sum(dim=-1)
    order, law = torch.argsort(compute_ms, descending=True, stable=True).numpy(), network.law(task.num_devices)
    dims, sizes, capacity = shards.tables.dim.numpy(), shards.device_bytes.numpy(), task.capacity_bytes.numpy()
    device = np.zeros((len(LIMITS), len(dims)), np.int64)
    sums = np.zeros((len(LIMITS), task.num_devices, latents.shape[1]))
    own_loads, mean_dims = latents.double().numpy(), dims.sum() / task.num_devices * (1 + 1e-9)
    fits = [
        _fill(law, own_loads, dims, sizes, order, limit * mean_dims, capacity, device[g], sums[g])
        for g, limit in enumerate(LIMITS)
    ]
    cost_ms = network.overall_ms(torch.from_numpy(sums).float()).masked_fill(~torch.tensor(fits), torch.inf)
    best = int(cost_ms.argmin())
    return Candidate(ranges, compute_ms, shards.device_bytes, device[best], float(cost_ms[best]))


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


def _halved(candidate: Candidate) -> Iterator[ShardList]:
    """Lists in which one of the costliest or largest shards is halved."""
    tables, figures = candidate.ranges, (candidate.compute_ms, candidate.shard_bytes)
    shards = [(t, k) for t, ranges in enumerate(tables) for k in range(len(ranges))]
    largest = [torch.argsort(values, descending=True, stable=True)[:_HALVED] for values in figures]
    for s in torch.cat(largest).unique().tolist():
        t, k = shards[s]
        start, end = tables[t][k]
        middle, odd = divmod(start + end, 2)
        if not odd and (middle - start) % DIM_MULTIPLE == 0:
            ranges = (*tables[t][:k], (start, middle), (middle, end), *tables[t][k + 1 :])
            yield (*tables[:t], ranges, *tables[t + 1 :])
