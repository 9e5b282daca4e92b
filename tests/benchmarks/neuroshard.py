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
from itertools import chain, groupby

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dreamshard.cost_model import CostNetwork, Normaliser
from dreamshard.cost_model.compiled import DeviceLaw, Floats, Ints, jit, policy_costs_ms
from dreamshard.cost_model.cost_network import COMPUTE
from dreamshard.search.packing import packed
from dreamshard.tables import DIM_MULTIPLE, Placement, TableSharding
from dreamshard.tasks import OrderedPlacer, PlacementTask, Shards

LIMITS = np.append(np.linspace(1.0, 1.5, 11), math.inf)
"""Limits on a device's sum of dims, relative to the mean over devices."""

_ROUNDS, _BEAM, _HALVED = 10, 3, 10

ShardList = tuple[tuple[int, int, int], ...]
"""Table, first and last (exclusive) column of each shard, table by table; all lists of a round are equally long."""


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

    def place_ordered(self, task: PlacementTask, budget_ms: float | None) -> Placement:
        """Raises NoPlacementError if neither the search nor packing finds room."""
        lists: list[ShardList] = [tuple((t, 0, dim) for t, dim in enumerate(task.tables.dim.tolist()))]
        network, normaliser = self.cost_network.for_task(task), self.normaliser.of_task(task.tables)
        law, capacity, least_ms = network.law(task.num_devices), task.capacity_bytes.numpy(), math.inf
        for _ in range(1 + _ROUNDS * self.columns):
            number = {key: i for i, key in enumerate(dict.fromkeys(chain(*lists)))}  # a shard of several lists is one
            ranges = [(t, 0, start, end, 0, math.nan) for t, start, end in number]
            shards, _ = Shards.of_ranges(task, torch.tensor(ranges, dtype=torch.float64).T, task.num_devices)
            latents = network.encode(normaliser(shards.tables), network.ratios(task, shards))  # [S, L]
            compute_ms = network.phases_ms(latents[:, None])[:, 0, COMPUTE].sum(dim=-1)  # [S] alone on a device
            index = torch.tensor([[number[shard] for shard in chosen] for chosen in lists])  # [C, N]
            order = torch.argsort(compute_ms[index], descending=True, stable=True)
            figures = latents.double().numpy(), shards.tables.dim.numpy(), shards.device_bytes.numpy()
            device, sums = _fill(law, *figures, index.numpy(), order.numpy(), capacity)
            cost_ms = network.overall_ms(torch.from_numpy(sums).float()).masked_fill(
                torch.from_numpy(device < 0).any(dim=2), torch.inf
            )
            cheapest = cost_ms.amin(dim=1)  # [C]
            beam = torch.argsort(cheapest, stable=True)[:_BEAM].tolist()
            if cheapest[beam[0]] < least_ms:
                least_ms, best = float(cheapest[beam[0]]), lists[beam[0]]
                where = device[beam[0], int(cost_ms[beam[0]].argmin())].tolist()
            sizes = compute_ms[index], shards.device_bytes[index]  # [C, N]
            lists = list(dict.fromkeys(new for c in beam for new in _halved(lists[c], *(size[c] for size in sizes))))
            if not lists:
                break
        if least_ms == math.inf:
            return Placement.whole(packed(task), task.num_devices)
        tables = []
        for _, group in groupby(zip(best, where, strict=True), key=lambda entry: entry[0][0]):
            held, places = zip(*group, strict=True)
            tables.append(TableSharding.by_columns(tuple((start, end) for _, start, end in held), places))
        return Placement(tuple(tables), task.num_devices, task.num_devices)


@jit
def _fill(
    law: DeviceLaw, latents: Floats, dims: Ints, sizes: Ints, lists: Ints, order: Ints, capacity: Ints
) -> tuple[Ints, Floats]:
    """Greedy placements of lists of shards under each limit.

    Returns:
        `[C, G, N]` device of each shard, -1 if it or an earlier one finds no room, and `[C, G, D, L]` loads of the devices.
    """
    (num_lists, count), num_devices, num_limits = lists.shape, len(capacity), len(LIMITS)
    device = np.full((num_lists, num_limits, count), -1)
    sums = np.zeros((num_lists, num_limits, num_devices, latents.shape[1]))
    phases = np.zeros(3)
    for c in range(num_lists):
        mean_dims = dims[lists[c]].sum() / num_devices * (1 + 1e-9)
        for g in range(num_limits):
            used, used_dims = np.zeros(num_devices, np.int64), np.zeros(num_devices, np.int64)
            held_ms, limit = np.zeros(num_devices), LIMITS[g] * mean_dims
            for n in order[c]:
                s, chosen = lists[c, n], -1
                for d in range(num_devices):
                    has_room = used[d] + sizes[s] <= capacity[d] and used_dims[d] + dims[s] <= limit
                    if has_room and (chosen < 0 or held_ms[d] < held_ms[chosen]):
                        chosen = d
                if chosen < 0:
                    break
                device[c, g, n] = chosen
                used[chosen] += sizes[s]
                used_dims[chosen] += dims[s]
                sums[c, g, chosen] += latents[s]
                policy_costs_ms(law, sums[c, g, chosen], phases)
                held_ms[chosen] = phases[0] + phases[1]
    return device, sums


def _halved(shards: ShardList, compute_ms: Float[Tensor, " N"], shard_bytes: Int[Tensor, " N"]) -> Iterator[ShardList]:
    """Lists in which one of the costliest or largest shards is halved."""
    largest = [torch.argsort(values, descending=True, stable=True)[:_HALVED] for values in (compute_ms, shard_bytes)]
    for s in torch.cat(largest).unique().tolist():
        t, start, end = shards[s]
        if (end - start) % (2 * DIM_MULTIPLE) == 0:
            middle = (start + end) // 2
            yield (*shards[:s], (t, start, middle), (t, middle, end), *shards[s + 1 :])
