"""Networks that score devices for the next table; softmax over the legal ones is the policy.

- `paper`: DreamShard's: a table MLP summed per device, the device's predicted costs through 3-64-32, one linear layer.
- `lookahead` also sees the table being placed and what each device would cost with it; its logit starts at minus that
  cost, so that an untrained policy is a soft greedy one, and means the same at every number of tables and devices.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dreamshard.cost_network import mlp
from dreamshard.features import FEATURES, NUM_PAPER_FEATURES

PolicyKind = Literal["lookahead", "paper"]

_LATENT = 32


@dataclass(frozen=True)
class DeviceView:
    """What a policy sees of each device before one step; costs relative to `Episodes.reference_ms`.

    Attributes:
        before: `[..., D, 4]` predicted phases without the table.
        after: `[..., D, 4]` predicted phases with it.
        memory: `[..., D]` share of the capacity used.
    """

    before: Float[Tensor, "*B D 4"]
    after: Float[Tensor, "*B D 4"]
    memory: Float[Tensor, "*B D"]


class PolicyNetwork(nn.Module):
    """Scores devices; `kind` says what it sees."""

    def __init__(self, kind: PolicyKind = "lookahead") -> None:
        super().__init__()
        self.kind: PolicyKind = kind
        if kind == "paper":
            self.table = mlp((NUM_PAPER_FEATURES, 128, _LATENT))
            self.cost = mlp((3, 64, _LATENT))
            self.score: nn.Module = nn.Linear(2 * _LATENT, 1)
        else:
            self.table = mlp((len(FEATURES), 128, _LATENT))
            self.cost = mlp((11, 64, _LATENT))
            last = nn.Linear(64, 1)
            nn.init.normal_(last.weight, std=1e-3)
            nn.init.zeros_(last.bias)
            self.score = nn.Sequential(nn.Linear(3 * _LATENT, 64), nn.ReLU(), last)
            self.greed = nn.Parameter(torch.tensor(3.0))

    def encode(self, features: Float[Tensor, "*B F"]) -> Float[Tensor, "*B L"]:
        """Latent of each table, to be summed over a device's tables."""
        seen = features[..., :NUM_PAPER_FEATURES] if self.kind == "paper" else features
        latent: Tensor = self.table(seen.clamp(-10, 10))
        return latent

    def forward(
        self,
        sums: Float[Tensor, "*B D L"],
        table: Float[Tensor, "*B L"],
        view: DeviceView,
        tables_per_device: float,
    ) -> Float[Tensor, "*B D"]:
        """Logit per device.

        Args:
            sums: latents summed over the tables each device holds.
            table: latent of the table being placed.
            view: predicted costs.
            tables_per_device: `T / D`; keeps sums of the same size whatever the task's.
        """
        if self.kind == "paper":
            cost = self.cost(view.before[..., [0, 3, 2]])
            paper: Tensor = self.score(torch.cat([sums, cost], dim=-1)).squeeze(-1)
            return paper
        total_before = view.before.sum(-1, keepdim=True)
        total_after = view.after.sum(-1, keepdim=True)
        seen = torch.cat([view.before, view.after, total_before, total_after, view.memory[..., None]], dim=-1)
        here = table.unsqueeze(-2).expand(*sums.shape[:-1], table.shape[-1])
        scored: Tensor = self.score(torch.cat([sums / tables_per_device, here, self.cost(seen)], dim=-1)).squeeze(-1)
        return scored - self.greed.exp() * total_after.squeeze(-1)
