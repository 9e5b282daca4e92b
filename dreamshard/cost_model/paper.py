"""DreamShard's own cost network (arXiv 2210.02023, section 3.1 and appendix B.1), on its 21 features.

As in the authors' program (`models.py`, `training.py`): ReLU after both layers of the table network, one table of zero
features on a device without tables, and a loss on two independent draws with replacement.
"""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dreamshard.cost_model.cost_data import CostData
from dreamshard.cost_model.cost_network import Architecture, CostNetwork, mlp
from dreamshard.cost_model.evaluator import Array, Loads, mlp_arrays, run_mlp
from dreamshard.cost_model.features import NUM_PAPER_FEATURES

_HIDDEN, _TABLE, _HEAD = 128, 32, 64


class TableNetwork(nn.Module):
    """The paper's table network, whose latents are summed over a device's tables; cost network and policy have one each.

    A device's sum also counts its tables, in the last column. One without tables gets the latent of zero features, which
    the authors' program passes through the network in its place.
    """

    latent_size = _TABLE + 1

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*mlp((NUM_PAPER_FEATURES, _HIDDEN, _TABLE)), nn.ReLU())

    def forward(self, normalised: Float[Tensor, "*B F"]) -> Float[Tensor, "*B L"]:
        """Latent of each table, and a 1 that counts it."""
        latent = self.layers(normalised[..., :NUM_PAPER_FEATURES])
        return torch.cat([latent, torch.ones_like(latent[..., :1])], dim=-1)

    def of_devices(self, sums: Float[Tensor, "*B L"]) -> Float[Tensor, "*B L2"]:
        """Latents of devices from the sums over their tables."""
        empty = self.layers(sums.new_zeros(NUM_PAPER_FEATURES))
        return torch.where(sums[..., -1:] > _HALF_A_TABLE, sums[..., :-1], empty)

    def empty(self) -> Array:
        """`[L2]` the latent of a device without tables."""
        empty: Array = self.layers(torch.zeros(NUM_PAPER_FEATURES)).detach().numpy()
        return empty


_HALF_A_TABLE = 0.5  # below it, what is left of a count is rounding


def device_latents(sums: Array, empty: Array) -> Array:
    """`[..., L2]` as `TableNetwork.of_devices`, in NumPy."""
    return np.where(sums[..., -1:] > _HALF_A_TABLE, sums[..., :-1], empty)


class PaperCostNetwork(CostNetwork):
    """Table MLP 21-128-32, sum, heads 32-64-1; max over devices of the sums, then 32-64-1 for the overall cost.

    The paper predicts no forward communication (its measurement contains the waiting for other devices); here both
    directions move the same bytes, so the one communication head stands for both.
    """

    architecture: Architecture = "paper"
    latent_size = TableNetwork.latent_size

    def __init__(self) -> None:
        super().__init__()
        self.table = TableNetwork()
        self.heads = nn.ModuleList(mlp((_TABLE, _HEAD, 1)) for _ in range(3))
        self.overall = mlp((_TABLE, _HEAD, 1))

    def encode(
        self, normalised: Float[Tensor, "*B F"], ratios: Float[Tensor, "*B 4"] | None = None
    ) -> Float[Tensor, "*B L"]:
        """As published, without an effect of precision, optimizer or batch size."""
        del ratios
        latent: Tensor = self.table(normalised)
        return latent

    def heads_ms(self, sums: Float[Tensor, "*B D L"]) -> Float[Tensor, "*B D 3"]:
        """Forward compute, backward communication and backward compute of each device."""
        latents = self.table.of_devices(sums)
        return torch.cat([head(latents) for head in self.heads], dim=-1)

    def phases_ms(self, sums: Float[Tensor, "*B D L"]) -> Float[Tensor, "*B D 4"]:
        return self.heads_ms(sums)[..., [0, 1, 1, 2]]

    def single_ms(self, latents: Float[Tensor, "*B L"]) -> Float[Tensor, "*B"]:
        """The sum of the three heads."""
        return self.heads_ms(latents).sum(-1)

    def first_ms(self, latents: Float[Tensor, "*B L"], num_devices: int) -> Float[Tensor, "*B"]:
        """`single_ms`, as published: the heads know nothing of the other devices."""
        return self.single_ms(latents)

    def overall_ms(self, sums: Float[Tensor, "*B D L"]) -> Float[Tensor, "*B"]:
        """The overall head on the largest latents."""
        overall: Tensor = self.overall(self.table.of_devices(sums).max(dim=-2).values).squeeze(-1)
        return overall

    def draw(self, data: CostData, batch: int, generator: torch.Generator) -> Int[Tensor, "2 B"]:
        """`batch` placements, and independently as many devices `sample x D + device`, both with replacement."""
        samples, devices = data.assignment.shape[:2]
        placements = torch.randint(samples, (batch,), generator=generator)
        return torch.stack([placements, torch.randint(samples * devices, (batch,), generator=generator)])

    def loss(self, data: CostData, chosen: Int[Tensor, "2 B"]) -> Float[Tensor, ""]:
        """Squared errors of the overall cost of placements, and of each head on single devices, summed."""
        samples, devices = data.assignment.shape[:2]
        sample, device, table = data.placed.unbind(1)
        latents = self.encode(data.features)  # [P, L]
        shards = latents.new_zeros(samples * devices, self.latent_size)
        shards = shards.index_add(0, sample * devices + device, latents[table])
        sums = shards.view(samples, devices, -1)
        measured = data.phases_ms.flatten(0, 1)[chosen[1]][:, [0, 2, 3]]
        heads = (self.heads_ms(shards[chosen[1]]) - measured).square().mean(dim=0).sum()
        return heads + (self.overall_ms(sums[chosen[0]]) - data.overall_ms[chosen[0]]).square().mean()

    def evaluator(self) -> "PaperEvaluator":
        return PaperEvaluator(self)


class PaperEvaluator:
    """`PaperCostNetwork` in NumPy: the effect of one more table is evaluated, since the heads are not linear in it."""

    def __init__(self, network: PaperCostNetwork) -> None:
        self.forward, self.comm, self.backward = (mlp_arrays(head) for head in network.heads)
        self.overall = mlp_arrays(network.overall)
        self.latent_size, self.empty_latent = network.latent_size, network.table.empty()

    def empty(self, batch: int, num_devices: int) -> Loads:
        """The heads decide what an empty device costs."""
        nothing = np.zeros((1, self.latent_size), np.float32)
        forward, backward, _ = self.compute(nothing)
        shape = (batch, num_devices)
        compute_ms = np.full(shape, forward + backward, np.float32)
        comm_ms = np.full(shape, self._comm_ms(nothing), np.float32)
        sums, rates = (np.zeros((*shape, size), np.float32) for size in (self.latent_size, 0))
        return Loads(sums, compute_ms, comm_ms, rates, np.float32(0))

    def compute(self, sums: Array) -> tuple[Array, Array, Array]:
        latents = self.device_latents(sums)
        forward, backward = (run_mlp(head, latents)[:, 0] for head in (self.forward, self.backward))
        return forward, backward, np.zeros((len(sums), 0), np.float32)

    def with_table(self, loads: Loads, latent: Array) -> tuple[Array, Array]:
        sums = loads.sums + latent[:, None, :]
        latents = self.device_latents(sums)
        return run_mlp(self.forward, latents)[..., 0] + run_mlp(self.backward, latents)[..., 0], self._comm_ms(sums)

    def widest_comm_ms(self, sums: Array, loads: Loads) -> Array:
        del loads
        return self._comm_ms(sums)

    def device_latents(self, sums: Array) -> Array:
        return device_latents(sums, self.empty_latent)

    def overall_ms(self, largest: Array) -> Array:
        overall: Array = run_mlp(self.overall, largest)[..., 0]
        return overall

    def overall_with_table(self, sums: Array, latent: Array) -> Array:
        """`[B, D]` overall cost once each device of `sums` `[B, D, L]` also holds the table of `latent` `[B, L]`."""
        grown = self.device_latents(sums + latent[:, None])  # [B, D, L2]
        if sums.shape[1] > 1:
            held = self.device_latents(sums)
            second, largest = np.moveaxis(np.partition(held, (-2, -1), axis=1)[:, -2:], 1, 0)  # [B, L2] each
            others = np.where(held == largest[:, None], second[:, None], largest[:, None])  # [B, D, L2]
            np.maximum(grown, others, out=grown)
        return self.overall_ms(grown)

    def _comm_ms(self, sums: Array) -> Array:
        comm: Array = 2 * run_mlp(self.comm, self.device_latents(sums))[..., 0]
        return comm
