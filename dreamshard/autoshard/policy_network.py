"""AutoShard's policy (arXiv 2208.06399): an LSTM over the tables, and a score for each device."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dreamshard.autoshard.cost_network import LATENT, TableEncoder
from dreamshard.cost_model import mlp

DEVICE_INPUTS = 2
"""What is known of a device beside its tables: its predicted compute and its memory in use."""


class AutoShardPolicy(nn.Module):
    """Chooses a device for one table after another, and estimates the reward to come.

    A step's state is the table being placed and the share of tables placed so far, through two LSTM layers. A device is the
    sum of its tables' latents and `DEVICE_INPUTS`. State, device and their product go through 192-128-128-64-1 to the
    device's logit, so any number of devices can be scored.
    """

    def __init__(self) -> None:
        super().__init__()
        width = 2 * LATENT
        self.table = TableEncoder()
        self.progress = nn.Sequential(nn.Linear(1, LATENT), nn.ReLU())
        self.device = nn.Sequential(nn.Linear(DEVICE_INPUTS, LATENT), nn.ReLU())
        self.core = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.score = mlp((3 * width, 128, 128, 64, 1))
        self.value = mlp((width, 64, 1))

    def encode(self, features: Float[Tensor, "B T F"]) -> Float[Tensor, "B T L"]:
        """Latent of each table."""
        latent: Tensor = self.table(features.clamp(-10, 10))
        return latent

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
        devices = torch.cat([sums, self.device(known)], dim=-1)  # [*B, D, H]
        state = states[..., None, :]
        first = self.score[0]
        assert isinstance(first, nn.Linear)
        of_state, of_device, of_both = first.weight.split(devices.shape[-1], dim=1)
        hidden = devices @ of_device.T + (state * devices) @ of_both.T + (state @ of_state.T + first.bias)
        logits: Tensor = self.score[1:](hidden).squeeze(-1)
        return logits
