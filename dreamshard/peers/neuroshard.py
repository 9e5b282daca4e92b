"""NeuroShard's search: Zha et al., "Pre-train and Search: Efficient Embedding Table Sharding with Pre-trained Neural
Cost Models", MLSys 2023 (arXiv 2305.01868).

Its inner loop, the greedy grid search of table-wise placements, is here. It balances compute and communication by two
rules: tables go, in descending order of their predicted compute, to the device with the least predicted compute so
far, but only to devices whose sum of dims stays below a limit. The grid tries 11 limits, from the mean sum of dims per
device to 1.5 times it, and keeps the placement with the lowest predicted overall cost.

Its outer loop is a beam search over column-wise splits: from each of the 3 best lists of shards it halves each of the
10 dearest and 10 largest, up to 10 times over, and judges every list by the inner loop. That loop is not here, so
tables stay whole; `grid_search` takes shards, not tables, so that a beam can call it with the shards of any split.

What differs from the paper: costs are those of the cost network that DreamShard has trained from about 100 measured
placements, where theirs is pre-trained on many thousands of measured shards; all limits are searched side by side, and
no limit at all is tried as well. Theirs finds nothing where a single table is wider than the widest limit.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from dreamshard import mdp
from dreamshard.baselines import pack_by_size
from dreamshard.cost_network import CostNetwork
from dreamshard.features import Normaliser
from dreamshard.placement import Placement
from dreamshard.search import predict_ms
from dreamshard.shard_costs import shard_costs
from dreamshard.tasks import PlacementTask

LIMITS = (*np.linspace(1.0, 1.5, 11).tolist(), float("inf"))
"""On a device's sum of dims, in units of the mean over the devices."""


@dataclass(frozen=True)
class Shards:
    """What is placed: whole tables, or columns of them.

    Attributes:
        latents: `[S, L]` of the cost network.
        dim: `[S]` columns.
        shard_bytes: `[S]`.
    """

    latents: Float[Tensor, "S L"]
    dim: Int[Tensor, " S"]
    shard_bytes: Int[Tensor, " S"]


@dataclass(frozen=True)
class Found:
    """The best placement of a grid search.

    Attributes:
        device: `[S]` of each shard.
        overall_ms: as predicted.
    """

    device: Int[Tensor, " S"]
    overall_ms: float


@dataclass(frozen=True)
class NeuroShardPlacer:
    """Greedy grid search on the cost network."""

    cost_network: CostNetwork
    normaliser: Normaliser
    name: str = "neuroshard"

    @torch.no_grad()
    def place(self, task: PlacementTask) -> Placement:
        """Raises NoPlacementError where neither a limit of the grid nor packing by size finds room."""
        latents = self.cost_network.encode(self.normaliser(task.tables))
        shards = Shards(latents, task.tables.dim, task.table_bytes)
        found = grid_search(self.cost_network, shards, task.num_devices, task.memory_bytes)
        return Placement(found.device if found else pack_by_size(task), task.num_devices)


@torch.no_grad()
def grid_search(network: CostNetwork, shards: Shards, num_devices: int, capacity_bytes: int) -> Found | None:
    """The cheapest of the greedy placements under each limit; None where no limit leaves one."""
    device, complete = _greedy(network, shards, num_devices, capacity_bytes)
    if not complete.any():
        return None
    candidates = torch.from_numpy(device[complete]).unique(dim=0)
    cost = predict_ms(network, shards.latents, candidates, num_devices)
    best = int(cost.argmin())
    return Found(candidates[best], float(cost[best]))


def _greedy(
    network: CostNetwork, shards: Shards, num_devices: int, capacity_bytes: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """A greedy placement per limit, `[G, S]`, and whether each found room for all shards, `[G]`."""
    costs, grid = shard_costs(network), len(LIMITS)
    latents, dims, shard_bytes = shards.latents.numpy(), shards.dim.numpy(), shards.shard_bytes.numpy()
    forward, backward, _ = costs.compute(latents)
    limit = np.asarray(LIMITS)[:, None] * dims.sum() / num_devices * (1 + 1e-9)  # [G, 1]
    state, used_dims = mdp.start(costs, grid, num_devices), np.zeros((grid, num_devices))
    device, complete = np.zeros((grid, len(dims)), np.int64), np.ones(grid, np.bool_)
    every = np.arange(grid)
    for s in np.argsort(-(forward + backward), kind="stable").tolist():
        room = (state.used_bytes + shard_bytes[s] <= capacity_bytes) & (used_dims + dims[s] <= limit)  # [G, D]
        held = state.loads.forward_ms + state.loads.backward_ms
        ranked = np.lexsort((state.used_bytes, np.where(room, held, np.inf)), axis=-1)[:, 0]  # ties: the emptier
        complete &= room.any(axis=1)
        device[:, s] = ranked
        used_dims[every, ranked] += dims[s]
        latent, size = np.tile(latents[s], (grid, 1)), np.full(grid, shard_bytes[s])
        mdp.step(costs, state, latent, size, ranked)
    return device, complete
