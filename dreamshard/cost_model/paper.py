"""DreamShard's own cost network (arXiv 2210.02023, section 3.1 and appendix B.1), on its 21 features.

As in the authors' program (`models.py`, `training.py`): ReLU after both layers of the table network, one table of zero
features on a device without tables, and a loss on two independent draws with replacement.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dreamshard.cost_model.compiled import PAPER, DeviceLaw, PaperLaw
from dreamshard.cost_model.cost_network import CostData, CostNetwork, mlp
from dreamshard.cost_model.features import NUM_PAPER_FEATURES

LATENT = 32
_HIDDEN, _HEAD = 128, 64


class TableNetwork(nn.Module):
    """The paper's table network, whose latents are summed over a device's tables; cost network and policy have one each.

    A device without tables gets the latent of zero features, which the authors' program passes through the network in its
    place.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*mlp(NUM_PAPER_FEATURES, _HIDDEN, LATENT), nn.ReLU())

    def forward(self, normalised: Float[Tensor, "*B F"]) -> Float[Tensor, "*B L"]:
        """Latent of each table."""
        latent: Tensor = self.layers(normalised[..., :NUM_PAPER_FEATURES])
        return latent

    def of_devices(self, sums: Float[Tensor, "*B L"]) -> Float[Tensor, "*B L2"]:
        """Latents of devices from the sums over their tables."""
        return torch.where(sums[..., -1:] > 0.5, sums[..., :-1], self.empty())

    def empty(self) -> Float[Tensor, " L2"]:
        """The latent of a device without tables."""
        return self.forward(torch.zeros(NUM_PAPER_FEATURES))


def heads_law(heads: Sequence[nn.Module], empty: Float[Tensor, " L"], unit_ms: float = 1.0) -> DeviceLaw:
    """The law of heads 32-64-1 on a device's latent; `empty` is the latent of a device without tables."""

    def of(layer: int, name: str) -> list[Tensor]:
        return [head.get_parameter(f"{layer}.{name}").double() for head in heads]

    paper = PaperLaw(
        hidden_weight=torch.cat(of(0, "weight")).T.contiguous().numpy(),
        hidden_bias=torch.cat(of(0, "bias")).numpy(),
        output_weight=unit_ms * torch.block_diag(*of(2, "weight")).T.contiguous().numpy(),
        output_bias=unit_ms * torch.cat(of(2, "bias")).numpy(),
        empty=empty.detach().double().numpy(),
    )
    return DeviceLaw(PAPER, width=LATENT, tables=LATENT, paper=paper)


class PaperCostNetwork(CostNetwork):
    """Table MLP 21-128-32, sum, heads 32-64-1; max over devices of the sums, then 32-64-1 for the overall cost.

    The paper predicts no forward communication (its measurement contains the waiting for other devices); here both
    directions move the same bytes, so the one communication head stands for both.
    """

    table: TableNetwork

    def __init__(self) -> None:
        super().__init__()
        self.table = TableNetwork()
        self.heads = nn.ModuleList(mlp(LATENT, _HEAD, 1) for _ in range(3))
        self.overall = mlp(LATENT, _HEAD, 1)

    def heads_ms(self, sums: Float[Tensor, "*B D L"]) -> Float[Tensor, "*B D 3"]:
        """Forward compute, backward communication and backward compute of each device."""
        latents = self.table.of_devices(sums)
        return torch.cat([head(latents) for head in self.heads], dim=-1)

    def phases_ms(self, sums: Float[Tensor, "*B D L"]) -> Float[Tensor, "*B D 4"]:
        return self.heads_ms(sums)[..., [0, 1, 1, 2]]

    def overall_ms(self, sums: Float[Tensor, "*B D L"]) -> Float[Tensor, "*B"]:
        """The overall head on the largest latents."""
        overall: Tensor = self.overall(self.table.of_devices(sums).max(dim=-2).values).squeeze(-1)
        return overall

    @torch.no_grad()
    def law(self, num_devices: int) -> DeviceLaw:
        """The heads of a device."""
        forward, communication, backward = self.heads
        return heads_law([forward, backward, communication], self.table.empty())

    def loss(self, data: CostData, batch: int, generator: torch.Generator) -> Float[Tensor, ""]:
        """Squared errors of the overall cost of drawn placements, and of each head on single devices, summed."""
        latents, sums = self.encode(data.features), data.assignment  # [P, L], [S, D, P]
        placements = torch.randint(len(sums), (batch,), generator=generator)
        devices = torch.randint(sums[..., 0].numel(), (batch,), generator=generator)  # sample x D + device
        predicted_ms = self.heads_ms(sums.flatten(0, 1)[devices] @ latents)
        heads = (predicted_ms - data.phases_ms.flatten(0, 1)[devices][:, [0, 2, 3]]).square().mean(dim=0).sum()
        overall_ms = self.overall_ms(sums[placements] @ latents)
        return heads + (overall_ms - data.overall_ms[placements]).square().mean()
