"""Networks that score devices for the next table; softmax over the legal ones is the policy.

A logit is `device code . table code - cost weight x cost of placing the table there` (`mdp.cost_if_placed_ms`). Device
codes depend on what a device holds, so a step changes one of them; table codes are constant. That makes a rollout cheap.

- `paper`: DreamShard's own (`models.py` of the authors' program): a table MLP summed per device, the device's predicted
  milliseconds through 3-64-32, ReLU after both, one linear layer. It does not see the table being placed: its table code is
  1 and its cost weight 0.
- `lookahead` sees the table and the cost of placing it on each device. It starts as a soft greedy rule. It applies to any
  number of tables and devices, since costs are relative and sums are divided by the mean number of tables per device.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dreamshard.cost_model import FEATURES, TableNetwork, mlp

PolicyKind = Literal["lookahead", "paper"]

_LATENT = 32
COST_COLUMNS = 3
"""Predicted costs of a device that a policy sees: forward compute, backward compute, communication."""


@dataclass(frozen=True)
class DeviceView:
    """What a policy sees of each device before a step.

    Costs are relative to `Episodes.reference_ms`; those of the policy `paper` are milliseconds.

    Attributes:
        costs: `[..., D, 3]` predicted forward compute, backward compute and communication: both all-to-alls, or one for the
            policy `paper`.
        cost_if_placed: `[..., D]` of the table being placed (`mdp.cost_if_placed_ms`).
        memory: `[..., D]` share of the capacity used.
    """

    costs: Float[Tensor, "*B D 3"]
    cost_if_placed: Float[Tensor, "*B D"]
    memory: Float[Tensor, "*B D"]


class PolicyNetwork(nn.Module):
    """Scores devices; its inputs depend on `kind`."""

    def __init__(self, kind: PolicyKind = "lookahead") -> None:
        super().__init__()
        self.kind: PolicyKind = kind
        if kind == "paper":
            self.table: TableNetwork | nn.Sequential = TableNetwork()
            self.cost = nn.Sequential(*mlp((COST_COLUMNS, 64, _LATENT)), nn.ReLU())
            self.score = nn.Linear(2 * _LATENT, 1)
        else:
            self.table = mlp((len(FEATURES), 128, _LATENT))
            self.device = mlp((_LATENT + COST_COLUMNS + 1, 64, _LATENT))
            self.wish = mlp((len(FEATURES), 64, _LATENT))
            self.greed = nn.Parameter(torch.tensor(4.5))
            last = self.wish[-1]
            assert isinstance(last, nn.Linear)
            nn.init.normal_(last.weight, std=1e-2)
            nn.init.zeros_(last.bias)

    def encode(self, features: Float[Tensor, "*B F"]) -> Float[Tensor, "*B L"]:
        """Latent of each table, to be summed over a device's tables."""
        latent: Tensor = self.table(features if self.kind == "paper" else features.clamp(-10, 10))
        return latent

    def table_codes(self, features: Float[Tensor, "*B F"]) -> Float[Tensor, "*B K"]:
        """One factor of the logits: a code per table."""
        if self.kind == "paper":
            return torch.ones_like(features[..., :1])
        code: Tensor = self.wish(features.clamp(-10, 10))
        return code

    def device_codes(
        self,
        sums: Float[Tensor, "*B L"],
        costs: Float[Tensor, "*B 3"],
        memory: Float[Tensor, "*B"],
        tables_per_device: float,
    ) -> Float[Tensor, "*B K"]:
        """The other factor: a code per device; `tables_per_device` is the task's `T / D`."""
        if isinstance(self.table, TableNetwork):
            code: Tensor = self.score(torch.cat([self.table.of_devices(sums), self.cost(costs)], dim=-1))
        else:
            code = self.device(torch.cat([sums / tables_per_device, costs, memory[..., None]], dim=-1))
        return code

    def cost_weight(self) -> Float[Tensor, ""]:
        """Weight of the predicted cost of placing the table."""
        return torch.zeros(()) if self.kind == "paper" else self.greed.exp()
