"""AutoShard's cost network (arXiv 2208.06399): forward and backward compute of the tables that one device holds."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dreamshard.cost_model import NUM_PAPER_FEATURES, CostData, Normaliser, TrainingDivergedError, mlp, shard_sums
from dreamshard.costs import PHASES, CostSample
from dreamshard.measured_on import MeasuredOn
from dreamshard.policy.reinforce import gradient_step

LATENT = 32
COMPUTE = [PHASES.index("forward_compute"), PHASES.index("backward_compute")]


class TableEncoder(nn.Sequential):
    """Latent of each table from DreamShard's 21 features, which are AutoShard's too: 21-128-32, each with ReLU."""

    def __init__(self) -> None:
        super().__init__(*mlp((NUM_PAPER_FEATURES, 128, LATENT)), nn.ReLU())

    def forward(self, normalised: Float[Tensor, "*B F"]) -> Float[Tensor, "*B L"]:
        """Encode normalised features, of which only the paper's count."""
        latent: Tensor = normalised[..., :NUM_PAPER_FEATURES]
        for layer in self:
            latent = layer(latent)
        return latent


class ComputeCostNetwork(nn.Module):
    """Table encoder, sum over the tables of a device, 32-64-1 to its compute.

    Attributes:
        unit_ms: unit of the last layer: mean cost of the shards of the first fit, so that losses mean the same on slow and
            on fast hardware. The authors' network predicts milliseconds.
        measured_on: what it was fitted to; None before the first fit.
    """

    architecture = "autoshard"
    measured_on: MeasuredOn | None = None

    def __init__(self) -> None:
        super().__init__()
        self.table = TableEncoder()
        self.head = mlp((LATENT, 64, 1))
        self.unit_ms: Tensor
        self.register_buffer("unit_ms", torch.ones(()))

    def encode(self, normalised: Float[Tensor, "*B F"]) -> Float[Tensor, "*B L"]:
        """Latent of each table, to be summed over a device's tables."""
        latent: Tensor = self.table(normalised)
        return latent

    def compute_ms(self, sums: Float[Tensor, "*B L"]) -> Float[Tensor, "*B"]:
        """Compute of devices that hold at least one table."""
        relative: Tensor = self.head(sums).squeeze(-1)
        return relative * self.unit_ms

    def device_ms(
        self, latents: Float[Tensor, "T L"], device: Int[Tensor, "B T"], num_devices: int
    ) -> Float[Tensor, "B D"]:
        """Compute of each device of `B` placements, 0 without tables, never negative."""
        held = torch.zeros(len(device), num_devices).scatter_add_(1, device, torch.ones(device.shape))
        return self.compute_ms(shard_sums(latents, device, num_devices)).clamp(min=0) * (held > 0)


@dataclass(frozen=True)
class ShardCosts:
    """Measured shards: what one device held, and its compute.

    Attributes:
        features: `[P, F]` normalised, of the `P` distinct tables that occur.
        held: `[N, P]` 1 where shard `n` has table `p`.
        compute_ms: `[N]` forward and backward.
    """

    features: Float[Tensor, "P F"]
    held: Float[Tensor, "N P"]
    compute_ms: Float[Tensor, " N"]

    @classmethod
    def of(cls, samples: Sequence[CostSample], normaliser: Normaliser) -> "ShardCosts":
        """Every device of the samples that held a table.

        Raises:
            ValueError: there are no samples.
        """
        data = CostData.of(samples, normaliser)
        held = data.assignment.flatten(0, 1)  # [S * D, P]
        has_tables = held.sum(dim=1) > 0
        compute_ms = data.phases_ms[..., COMPUTE].sum(dim=-1).flatten()
        return cls(data.features, held[has_tables], compute_ms[has_tables])

    def predicted_ms(self, network: ComputeCostNetwork, chosen: Int[Tensor, " B"] | None = None) -> Float[Tensor, " B"]:
        """What `network` predicts for the chosen shards, or for all."""
        held = self.held if chosen is None else self.held[chosen]
        return network.compute_ms(held @ network.encode(self.features))


def fit(
    network: ComputeCostNetwork,
    optimizer: torch.optim.Optimizer,
    data: ShardCosts,
    *,
    steps: int,
    batch: int,
    max_norm: float,
    generator: torch.Generator,
) -> float:
    """Take `steps` optimizer steps, each on `batch` shards drawn with replacement; returns the mean loss in `unit_ms`².

    Raises:
        TrainingDivergedError: the loss is not finite.
    """
    total = 0.0
    for _ in range(steps):
        chosen = torch.randint(len(data.compute_ms), (batch,), generator=generator)
        error = data.predicted_ms(network, chosen) - data.compute_ms[chosen]
        loss = (error / network.unit_ms).square().mean()
        if not torch.isfinite(loss):
            raise TrainingDivergedError(
                f"the loss of AutoShard's cost network became {float(loss.detach())}, so its predictions are worthless; the "
                "last checkpoint is intact: look for extreme cost samples, or lower the learning rate"
            )
        gradient_step(network, optimizer, loss, max_norm=max_norm)
        total += float(loss.detach())
    return total / max(steps, 1)
