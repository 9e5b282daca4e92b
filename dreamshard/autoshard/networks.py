"""AutoShard's networks (arXiv 2208.06399); both encode tables as DreamShard does, each with weights of its own."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dreamshard.cost_model import CostData, CostNetwork, TableNetwork, mlp
from dreamshard.cost_model.compiled import DeviceLaw
from dreamshard.cost_model.cost_network import COMPUTE
from dreamshard.cost_model.paper import LATENT, heads_law

DEVICE_INPUTS = 2
"""Of a device, besides its tables: its predicted compute and its memory in use."""


class ComputeCostNetwork(CostNetwork):
    """Compute of a device: table encoder, sum over its tables, 32-64-1.

    Attributes:
        unit_ms: unit of the last layer: mean cost of the devices of the first fit, so that losses mean the same on slow
            and on fast hardware. The authors' network predicts milliseconds.
    """

    max_gradient_norm = 40.0
    unit_ms: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.table = TableNetwork()
        self.head = mlp(LATENT, 64, 1)
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
        return nn.functional.pad(self.compute_ms(sums)[..., None], (0, 3))

    @torch.no_grad()
    def law(self, num_devices: int) -> DeviceLaw:
        """Compute of a device with tables."""
        return heads_law([self.head], torch.zeros(LATENT), float(self.unit_ms))

    def fit(self, data: CostData, optimizer: torch.optim.Optimizer, *, first: bool, **steps: Any) -> float:
        """See `CostNetwork`; sets `unit_ms` before the first fit."""
        if first:
            self.unit_ms.fill_(float(_measured_ms(data).mean().clamp(min=1e-9)))
        return super().fit(data, optimizer, first=first, **steps)

    def loss(self, data: CostData, batch: int, generator: torch.Generator) -> Float[Tensor, ""]:
        """Mean squared error in `unit_ms`², of devices with tables drawn with replacement."""
        drawn = torch.randint(len(data.holding), (batch,), generator=generator)
        sums = data.assignment.flatten(0, 1)[data.holding[drawn]] @ self.encode(data.features)
        error: Tensor = self.head(sums[..., :-1]).squeeze(-1) - _measured_ms(data)[drawn] / self.unit_ms
        return error.square().mean()

    def predicted(self, data: CostData) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
        """Compute of devices with tables."""
        return self.compute_ms(data.sums(self.encode)).flatten()[data.holding], _measured_ms(data)


def _measured_ms(data: CostData) -> Float[Tensor, " N"]:
    """Compute of each device with tables."""
    return data.phases_ms[..., COMPUTE].sum(dim=-1).flatten()[data.holding]


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
        self.score = nn.Sequential(nn.ReLU(), *mlp(128, 128, 64, 1))
        self.value = mlp(width, 64, 1)

    def encode(self, features: Float[Tensor, "T F"]) -> Float[Tensor, "T L"]:
        """Latent of each table."""
        latent: Tensor = self.table(features.clamp(-10, 10))
        return latent[..., :-1]

    def states(self, encoded: Float[Tensor, "T L"]) -> Float[Tensor, "T H"]:
        """The state of each step; it depends on no choice of device."""
        placed = torch.arange(len(encoded))[:, None] / len(encoded)  # [T, 1]
        states: Tensor = self.core(torch.cat([encoded, self.progress(placed)], dim=-1))[0]
        return states

    def values(self, states: Float[Tensor, "*B H"]) -> Float[Tensor, "*B"]:
        """Expected reward of the rest of the episode."""
        values: Tensor = self.value(states).squeeze(-1)
        return values

    def logits(
        self, states: Float[Tensor, "*B H"], sums: Float[Tensor, "*C D L"], known: Float[Tensor, "*C D I"]
    ) -> Float[Tensor, "*C D"]:
        """Score of each device.

        Args:
            states: of the steps.
            sums: latents summed over each device's tables.
            known: `DEVICE_INPUTS` of each device.
        """
        devices, state = torch.cat([sums, self.device(known)], dim=-1), states[..., None, :]  # [*C, D, H]
        of_state, of_device, of_both = self.first.weight.split(devices.shape[-1], dim=1)
        hidden = devices @ of_device.T + (state * devices) @ of_both.T + (state @ of_state.T + self.first.bias)
        logits: Tensor = self.score(hidden).squeeze(-1)
        return logits
