"""NeuroShard's search: Zha et al., "Pre-train and Search: Efficient Embedding Table Sharding with Pre-trained Neural
Cost Models", MLSys 2023 (arXiv 2305.01868).

Its inner loop is a greedy grid search of table-wise placements. It balances compute and communication by two rules:
shards go, in descending order of their predicted compute, to the device with the least predicted compute so far, but
only to devices whose sum of dims stays below a limit. The grid tries 11 limits, from the mean sum of dims per device to
1.5 times it, and keeps the placement with the lowest predicted overall cost.

Its outer loop is a beam search over column-wise splits: from each of the 3 best lists of shards it halves each of the
10 dearest and 10 largest shards in turn, up to 10 times over, and judges every list by the inner loop.

What differs from the paper: costs are those of the cost network that DreamShard has trained from about 100 measured
placements, where theirs is pre-trained on many thousands of measured shards; all lists and limits of a round are
searched side by side, equal lists once; and no limit at all is tried as well, since theirs finds nothing where a single
table is wider than the widest limit. Where no list fits, packing by size has the last word, as for every other placer.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from dreamshard.baselines import pack_by_size
from dreamshard.cost_model.fast_evaluation import shard_costs
from dreamshard.cost_model.features import Normaliser
from dreamshard.cost_model.networks import CostNetwork
from dreamshard.placement import ColumnShard, Placement
from dreamshard.tasks import PlacementTask

LIMITS = (*np.linspace(1.0, 1.5, 11).tolist(), float("inf"))
"""On a device's sum of dims, in units of the mean over the devices."""

_ROUNDS, _BEAM, _HALVED = 10, 3, 10
_COLUMNS = 4  # what the fused operator takes a multiple of

ShardList = tuple[ColumnShard, ...]


@dataclass(frozen=True)
class Shards:
    """What is placed, in `C` alternatives of `S` shards each: whole tables, or columns of them.

    Attributes:
        latents: `[C, S, L]` of the cost network.
        dim: `[C, S]` columns.
        shard_bytes: `[C, S]`.
    """

    latents: Float[Tensor, "C S L"]
    dim: Int[Tensor, "C S"]
    shard_bytes: Int[Tensor, "C S"]


@dataclass(frozen=True)
class Found:
    """The best placement of each alternative.

    Attributes:
        device: `[C, S]`.
        overall_ms: `[C]` as predicted; infinite where nothing fits under any limit.
    """

    device: Int[Tensor, "C S"]
    overall_ms: Float[Tensor, " C"]


@dataclass(frozen=True)
class NeuroShardPlacer:
    """Beam search over splits, greedy grid search over placements, on the cost network.

    Attributes:
        columns: whether tables may be split by columns; without, the grid search of whole tables is all there is.
    """

    cost_network: CostNetwork
    normaliser: Normaliser
    columns: bool = True
    name: str = "neuroshard"

    @torch.no_grad()
    def place(self, task: PlacementTask) -> Placement:
        """Raises NoPlacementError where neither the search nor packing by size finds room."""
        lists: list[ShardList] = [tuple(ColumnShard(t, 0, dim) for t, dim in enumerate(task.tables.dim.tolist()))]
        best, best_ms = None, float("inf")
        for _ in range(1 + _ROUNDS * self.columns):
            shards = _shards(task, lists, self.cost_network, self.normaliser)
            found = grid_search(self.cost_network, shards, task.num_devices, task.memory_bytes)
            beam = torch.argsort(found.overall_ms, stable=True)[:_BEAM].tolist()
            if float(found.overall_ms[beam[0]]) < best_ms:
                best, best_ms = (lists[beam[0]], found.device[beam[0]]), float(found.overall_ms[beam[0]])
            compute = single_compute_ms(self.cost_network, shards)  # [C, S]
            halved = (_halved(lists[c], compute[c], shards.shard_bytes[c].numpy()) for c in beam)
            lists = list(dict.fromkeys(each for several in halved for each in several))
            if not lists:
                break
        if best is None:
            return Placement(pack_by_size(task), task.num_devices)
        parts, device = best
        return Placement(device, task.num_devices, parts if len(parts) > len(task.tables) else None)


@torch.no_grad()
def grid_search(network: CostNetwork, shards: Shards, num_devices: int, capacity_bytes: int) -> Found:
    """The cheapest of the greedy placements under each limit, for each alternative."""
    costs = shard_costs(network)
    alternatives, num_shards = shards.dim.shape
    batch, grid = alternatives * len(LIMITS), len(LIMITS)
    episode, alternative = np.arange(batch), np.repeat(np.arange(alternatives), grid)
    latents, dims, shard_bytes = shards.latents.numpy(), shards.dim.numpy(), shards.shard_bytes.numpy()
    mean = dims.sum(axis=1)[alternative] / num_devices
    limit = (np.tile(LIMITS, alternatives) * mean * (1 + 1e-9))[:, None]  # [B, 1]
    order = np.argsort(-single_compute_ms(network, shards), axis=1, kind="stable")  # [C, S]
    used_bytes, used_dims = np.zeros((2, batch, num_devices), np.int64)
    held_ms = np.zeros((batch, num_devices), np.float32)
    sums = np.zeros((batch, num_devices, latents.shape[-1]), np.float32)
    device, complete = np.zeros((batch, num_shards), np.int64), np.ones(batch, np.bool_)
    for s in range(num_shards):
        shard = order[alternative, s]  # [B]
        dim, size = dims[alternative, shard], shard_bytes[alternative, shard]
        room = (used_bytes + size[:, None] <= capacity_bytes) & (used_dims + dim[:, None] <= limit)  # [B, D]
        complete &= room.any(axis=1)
        chosen = np.where(room, held_ms, np.inf).argmin(axis=1)
        used_bytes[episode, chosen] += size
        used_dims[episode, chosen] += dim
        sums[episode, chosen] += latents[alternative, shard]
        forward, backward, _ = costs.compute(sums[episode, chosen])
        held_ms[episode, chosen] = forward + backward
        device[episode, shard] = chosen
    cost = network.overall_ms(torch.from_numpy(sums))  # [B]
    cost = cost.masked_fill(torch.from_numpy(~complete), torch.inf).reshape(alternatives, grid)
    best = cost.argmin(dim=1)  # [C]
    every = torch.arange(alternatives)
    return Found(torch.from_numpy(device).reshape(alternatives, grid, num_shards)[every, best], cost[every, best])


def single_compute_ms(network: CostNetwork, shards: Shards) -> NDArray[np.float32]:
    """`[C, S]` predicted compute of each shard alone on a device."""
    forward, backward, _ = shard_costs(network).compute(shards.latents.flatten(0, 1).numpy())
    alone: NDArray[np.float32] = (forward + backward).reshape(shards.dim.shape)
    return alone


def _halved(parts: ShardList, compute_ms: NDArray[np.float32], shard_bytes: NDArray[np.int64]) -> list[ShardList]:
    """The lists in which one of the dearest or largest of `parts` is halved."""
    worth = {*np.argsort(-compute_ms, kind="stable")[:_HALVED], *np.argsort(-shard_bytes, kind="stable")[:_HALVED]}
    lists = []
    for s in sorted(int(each) for each in worth):
        part = parts[s]
        middle, odd = divmod(part.start + part.end, 2)
        if odd or (middle - part.start) % _COLUMNS:
            continue
        halves = ColumnShard(part.table, part.start, middle), ColumnShard(part.table, middle, part.end)
        lists.append((*parts[:s], *halves, *parts[s + 1 :]))
    return lists


def _shards(task: PlacementTask, lists: Sequence[ShardList], network: CostNetwork, normaliser: Normaliser) -> Shards:
    """Every list's shards; each distinct shard is encoded once."""
    distinct = {part: i for i, part in enumerate(dict.fromkeys(part for parts in lists for part in parts))}
    boundless = replace(task, memory_bytes=sys.maxsize)  # they overlap, so together they need not fit
    nowhere = torch.zeros(len(distinct), dtype=torch.int64)
    pieces, _ = boundless.sharded(Placement(nowhere, task.num_devices, tuple(distinct)))
    index = torch.tensor([[distinct[part] for part in parts] for parts in lists])  # [C, S]
    latents = network.encode(normaliser(pieces.tables))
    return Shards(latents[index], pieces.tables.dim[index], pieces.table_bytes[index])
