"""AutoShard's networks (arXiv 2208.06399); both encode tables as DreamShard does, each with weights of its own."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dreamshard.cost_model import CostData, CostNetwork, TableNetwork, mlp
from dreamshard.cost_model.paper import LATENT
from dreamshard.costs import PHASES

DEVICE_INPUTS = 2
"""Of a device, besides its tables: its predicted compute and its memory in use."""

_COMPUTE = [PHASES.index("forward_compute"), PHASES.index("backward_compute")]


@dataclass(frozen=True)
class ShardCosts:
    """Measured shards: the tables of one device, and its compute.

    Attributes:
        features: `[P, F]` normalised, of the `P` distinct tables that occur.
        held: `[N, P]` 1 if shard `n` has table `p`.
        compute_ms: `[N]` forward and backward.
    """

    features: Float[Tensor, "P F"]
    held: Float[Tensor, "N P"]
    compute_ms: Float[Tensor, " N"]


class ComputeCostNetwork(CostNetwork):
    """Compute of a device: table encoder, sum over its tables, 32-64-1.

    Attributes:
        unit_ms: unit of the last layer: mean cost of the shards of the first fit, so that losses mean the same on slow and
            on fast hardware. The authors' network predicts milliseconds.
    """

    latent_size = TableNetwork.latent_size
    max_gradient_norm = 40.0
    unit_ms: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.table = TableNetwork()
        self.head = mlp((LATENT, 64, 1))
        self.register_buffer("unit_ms", torch.ones(()))

    def encode(
        self, normalised: Float[Tensor, "*B F"], ratios: Float[Tensor, "*B 4"] | None = None
    ) -> Float[Tensor, "*B L"]:
        """As published, without an effect of precision, optimizer or batch size."""
        latent: Tensor = self.table(normalised)
        return latent

    def compute_ms(self, sums: Float[Tensor, "*B L"]) -> Float[Tensor, "*B"]:
        """Forward and backward compute of devices; 0 without tables, never negative."""
        held = sums[..., -1] > 0.5
        compute: Tensor = self.head(sums[..., :-1]).squeeze(-1).clamp(min=0) * held * self.unit_ms
        return compute

    def phases_ms(self, sums: Float[Tensor, "*B D L"]) -> Float[Tensor, "*B D 4"]:
        """All compute as forward compute, since AutoShard does not tell the passes apart, and no communication."""
        compute = self.compute_ms(sums)[..., None]
        return torch.cat([compute, compute.new_zeros(*compute.shape[:-1], 3)], dim=-1)

    def draw(self, data: CostData, batch: int, generator: torch.Generator) -> Int[Tensor, " B"]:
        """Shards with tables, drawn with replacement."""
        return torch.randint(int((data.assignment.sum(dim=2) > 0).sum()), (batch,), generator=generator)

    @staticmethod
    def shards(data: CostData) -> ShardCosts:
        """Every device of the samples that held a table."""
        held = data.assignment.flatten(0, 1)  # [S D, P]
        has_tables = held.sum(dim=1) > 0
        compute_ms = data.phases_ms[..., _COMPUTE].sum(dim=-1).flatten()
        return ShardCosts(data.features, held[has_tables], compute_ms[has_tables])

    def loss(self, data: ShardCosts, chosen: Int[Tensor, " B"]) -> Float[Tensor, ""]:
        """Mean squared error in `unit_ms`²."""
        sums = data.held[chosen] @ self.encode(data.features)
        error: Tensor = self.head(sums[..., :-1]).squeeze(-1) - data.compute_ms[chosen] / self.unit_ms
        return error.square().mean()

    @torch.no_grad()
    def prepare(self, data: CostData, *, first: bool) -> ShardCosts:
        """The shards; sets `unit_ms` before the first fit."""
        shards = self.shards(data)
        if first:
            self.unit_ms.fill_(float(shards.compute_ms.mean().clamp(min=1e-9)))
        return shards

    def predicted(self, data: CostData) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"], tuple[str, ...]]:
        """Compute of shards."""
        shards = self.shards(data)
        compute_ms = self.compute_ms(shards.held @ self.encode(shards.features))
        return compute_ms, shards.compute_ms, ("",) * len(compute_ms)


class AutoShardPolicy(nn.Module):
    """Chooses a device for one table after another, and estimates the reward to come.

    A step's state is the table being placed and the share of tables placed so far, through two LSTM layers. A device is the
    sum of its tables' latents and `DEVICE_INPUTS`. State, device and their product go through 192-128-128-64-1 to the
    device's logit, so any number of devices can be scored.
    """

    def __init__(self) -> None:
        super().__init__()
        width = 2 * LATENT
        self.table = TableNetwork()
        self.progress = nn.Sequential(nn.Linear(1, LATENT), nn.ReLU())
        self.device = nn.Sequential(nn.Linear(DEVICE_INPUTS, LATENT), nn.ReLU())
        self.core = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.first = nn.Linear(3 * width, 128)
        self.score = nn.Sequential(nn.ReLU(), *mlp((128, 128, 64, 1)))
        self.value = mlp((width, 64, 1))

    def encode(self, features: Float[Tensor, "B T F"]) -> Float[Tensor, "B T L"]:
        """Latent of each table."""
        latent: Tensor = self.table(features.clamp(-10, 10))
        return latent[..., :-1]

    def states(self, encoded: Float[Tensor, "B T L"]) -> Float[Tensor, "B T H"]:
        """The state of each step; it depends on no choice of device."""
        batch, num_tables, _ = encoded.shape
        placed = torch.arange(num_tables) / num_tables  # [T]
        progress = self.progress(placed[None, :, None]).expand(batch, -1, -1)
        states: Tensor = self.core(torch.cat([encoded, progress], dim=-1))[0]
        return states

    def values(self, states: Float[Tensor, "*B H"]) -> Float[Tensor, "*B"]:
        """Expected reward of the rest of the episode."""
        values: Tensor = self.value(states).squeeze(-1)
        return values

    def logits(
        self, states: Float[Tensor, "*B H"], sums: Float[Tensor, "*B D L"], known: Float[Tensor, "*B D I"]
    ) -> Float[Tensor, "*B D"]:
        """Score of each device.

        Args:
            states: of the steps.
            sums: latents summed over each device's tables.
            known: `DEVICE_INPUTS` of each device.
        """
        devices, state = torch.cat([sums, self.device(known)], dim=-1), states[..., None, :]  # [*B, D, H]
        of_state, of_device, of_both = self.first.weight.split(devices.shape[-1], dim=1)
        hidden = devices @ of_device.T + (state * devices) @ of_both.T + (state @ of_state.T + self.first.bias)
        logits: Tensor = self.score(hidden).squeeze(-1)
        return logits
