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

Differences from the paper: all lists and limits of a round are searched in one batch, equal lists once. The grid also
includes no limit, since the paper's search finds nothing if one table is wider than the widest limit. If no list fits,
tables are packed by size, as for every other placer.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from dreamshard.baselines import packed
from dreamshard.cost_model import CostNetwork, Normaliser
from dreamshard.cost_model.evaluator import Array
from dreamshard.placement import Placement, TableSharding
from dreamshard.placer import OrderedPlacer
from dreamshard.shards import Shards
from dreamshard.tables import DIM_MULTIPLE
from dreamshard.tasks import PlacementTask

LIMITS = (*np.linspace(1.0, 1.5, 11).tolist(), float("inf"))
"""Limits on a device's sum of dims, relative to the mean over devices."""

_ROUNDS, _BEAM, _HALVED = 10, 3, 10


class Part(NamedTuple):
    """Columns `start` to `end` (exclusive) of a table."""

    table: int
    start: int
    end: int


ShardList = tuple[Part, ...]


@dataclass(frozen=True)
class PredictedCosts:
    """Costs of shards by a cost network; latents are summed over the shards of a device."""

    cost_network: CostNetwork
    normaliser: Normaliser

    def for_task(self, task: PlacementTask) -> "PredictedCosts":
        """With the communication of the task's devices, and the statistics of its tables where a version normalises per task.

        The search encodes pieces of many alternative splits together, which are no task to take statistics of.
        """
        return replace(
            self, cost_network=self.cost_network.for_task(task), normaliser=self.normaliser.of_task(task.tables)
        )

    def encode(self, pieces: PlacementTask) -> Float[Tensor, "S L"]:
        """By the network."""
        ratios = self.cost_network.ratios([pieces])
        return self.cost_network.encode(self.normaliser(pieces.tables), None if ratios is None else ratios[0])

    def compute_ms(self) -> Callable[[Array], Array]:
        """By the network in NumPy."""
        evaluator = self.cost_network.evaluator()

        def predicted(sums: Array) -> Array:
            forward, backward, _ = evaluator.compute(sums)
            return forward + backward

        return predicted

    def overall_ms(self, sums: Float[Tensor, "B D L"]) -> Float[Tensor, " B"]:
        """By the network."""
        return self.cost_network.overall_ms(sums)


@dataclass(frozen=True)
class EncodedShards:
    """`C` alternative lists of `S` shards each; `dim` counts columns."""

    latents: Float[Tensor, "C S L"]
    dim: Int[Tensor, "C S"]
    shard_bytes: Int[Tensor, "C S"]


@dataclass(frozen=True)
class NeuroShardPlacer(OrderedPlacer):
    """Beam search over splits, greedy grid search over placements.

    Attributes:
        columns: whether tables may be split by columns; if not, only the grid search runs, on whole tables.
    """

    costs: PredictedCosts
    columns: bool = True
    name: str = "neuroshard"

    def found(self, task: PlacementTask, budget_ms: float | None) -> Placement:
        """Raises NoPlacementError where neither the search nor packing finds room, or for unknown devices."""
        lists: list[ShardList] = [tuple(Part(t, 0, dim) for t, dim in enumerate(task.tables.dim.tolist()))]
        costs = self.costs.for_task(task)
        best, best_ms = None, float("inf")
        for _ in range(1 + _ROUNDS * self.columns):
            shards = _encode(task, lists, costs)
            device, cost_ms = grid_search(costs, shards, task.num_devices, task.memory_bytes)
            beam = torch.argsort(cost_ms, stable=True)[:_BEAM].tolist()
            if float(cost_ms[beam[0]]) < best_ms:
                best, best_ms = (lists[beam[0]], device[beam[0]]), float(cost_ms[beam[0]])
            compute = single_compute_ms(costs, shards)  # [C, S]
            halved = (_halved(lists[c], compute[c], shards.shard_bytes[c].numpy()) for c in beam)
            lists = list(dict.fromkeys(shard_list for group in halved for shard_list in group))
            if not lists:
                break
        if best is None:
            return Placement.whole(packed(task), task.num_devices)
        parts, best_device = best
        tables = []
        for _, own in groupby(zip(parts, best_device.tolist(), strict=True), key=lambda each: each[0].table):
            held, where = zip(*own, strict=True)
            tables.append(TableSharding.by_columns(tuple((part.start, part.end) for part in held), where))
        return Placement(tuple(tables), task.num_devices, task.num_devices)


@torch.no_grad()
def grid_search(
    costs: PredictedCosts, shards: EncodedShards, num_devices: int, capacity_bytes: int
) -> tuple[Int[Tensor, "C S"], Float[Tensor, " C"]]:
    """The cheapest of the greedy placements under each limit, for each alternative.

    Returns:
        Device of each shard, and predicted overall milliseconds, infinite where nothing fits under any limit.
    """
    compute_ms = costs.compute_ms()
    (alternatives, num_shards), grid = shards.dim.shape, len(LIMITS)
    batch = alternatives * grid
    episode, alternative = np.arange(batch), np.repeat(np.arange(alternatives), grid)
    latents, dims, shard_bytes = shards.latents.numpy(), shards.dim.numpy(), shards.shard_bytes.numpy()
    mean = dims.sum(axis=1)[alternative] / num_devices
    limit = (np.tile(LIMITS, alternatives) * mean * (1 + 1e-9))[:, None]  # [B, 1]
    order = np.argsort(-single_compute_ms(costs, shards), axis=1, kind="stable")  # [C, S]
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
        held_ms[episode, chosen] = compute_ms(sums[episode, chosen])
        device[episode, shard] = chosen
    cost = costs.overall_ms(torch.from_numpy(sums))  # [B]
    cost = cost.masked_fill(torch.from_numpy(~complete), torch.inf).reshape(alternatives, grid)
    best = cost.argmin(dim=1)  # [C]
    chosen_limit = torch.arange(alternatives), best
    return torch.from_numpy(device).reshape(alternatives, grid, num_shards)[chosen_limit], cost[chosen_limit]


def single_compute_ms(costs: PredictedCosts, shards: EncodedShards) -> NDArray[np.float32]:
    """`[C, S]` predicted compute of each shard alone on a device."""
    return costs.compute_ms()(shards.latents.flatten(0, 1).numpy()).reshape(shards.dim.shape)


def _halved(parts: ShardList, compute_ms: NDArray[np.float32], shard_bytes: NDArray[np.int64]) -> list[ShardList]:
    """Lists in which one of the costliest or largest of `parts` is halved."""
    candidates = {*np.argsort(-compute_ms, kind="stable")[:_HALVED], *np.argsort(-shard_bytes, kind="stable")[:_HALVED]}
    lists = []
    for s in sorted(map(int, candidates)):
        part = parts[s]
        middle, odd = divmod(part.start + part.end, 2)
        if odd or (middle - part.start) % DIM_MULTIPLE:
            continue
        pair = Part(part.table, part.start, middle), Part(part.table, middle, part.end)
        lists.append((*parts[:s], *pair, *parts[s + 1 :]))
    return lists


def _encode(task: PlacementTask, lists: Sequence[ShardList], costs: PredictedCosts) -> EncodedShards:
    """All lists' shards; each distinct shard is encoded once."""
    distinct = {part: i for i, part in enumerate(dict.fromkeys(part for parts in lists for part in parts))}
    unlimited = replace(task, memory_bytes=sys.maxsize)  # the shards overlap, so together they need not fit
    table, start, end = torch.tensor(list(distinct)).T
    nowhere = torch.zeros_like(table)
    pieces = Shards.made(
        unlimited,
        table=table,
        device=nowhere,
        sharding_type=nowhere,
        rows=torch.stack([nowhere, task.tables.rows[table]], dim=1),
        columns=torch.stack([start, end], dim=1),
        cached_share=torch.full((len(table),), torch.nan),
        devices_per_host=task.num_devices,
    ).as_task(unlimited)
    index = torch.tensor([[distinct[part] for part in parts] for parts in lists])  # [C, S]
    latents = costs.encode(pieces)
    return EncodedShards(latents[index], pieces.tables.dim[index], pieces.table_bytes[index])
