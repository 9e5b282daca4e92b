"""What the MDP, the search, training and model files ask of a cost network.

`encode` turns each table into a latent vector that is summed over the tables of a device; `phases_ms` turns each
device's sum into milliseconds. The MDP can therefore keep sums instead of recomputing them. An empty device has the
zero vector.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dreamshard.cost_model.cost_data import CostData
from dreamshard.cost_model.evaluator import ShardEvaluator

Architecture = Literal["structured", "paper"]


class CostNetwork(nn.Module):
    """Predicts the cost of placements from features of their tables."""

    architecture: Architecture
    latent_size: int

    def encode(self, normalised: Float[Tensor, "*B F"]) -> Float[Tensor, "*B L"]:
        """Latent vector of each table."""
        raise NotImplementedError

    def phases_ms(self, sums: Float[Tensor, "*B D L"]) -> Float[Tensor, "*B D 4"]:
        """Milliseconds per device and phase, in the order of `dreamshard.costs.PHASES`."""
        raise NotImplementedError

    def overall_ms(self, sums: Float[Tensor, "*B D L"]) -> Float[Tensor, "*B"]:
        """The slowest device's sum of phases."""
        return self.phases_ms(sums).sum(dim=-1).max(dim=-1).values

    def loss(self, data: CostData, chosen: Int[Tensor, " B"]) -> Float[Tensor, ""]:
        """The training loss on the chosen samples."""
        raise NotImplementedError

    def evaluator(self) -> ShardEvaluator:
        """The network as it is now in NumPy, for the many small steps of placing."""
        raise NotImplementedError

    def arguments(self) -> dict[str, int]:
        """Arguments of the constructor that model files keep; see `new_cost_network`."""
        return {}

    def prepare(self, data: CostData, *, first: bool) -> None:
        """Set what has a closed form; called before each fit, with `first` before the first fit of an untrained network."""

    def fit_communication(self, dims: Float[Tensor, "S D"], phases_ms: Float[Tensor, "S D 4"]) -> None:
        """Fit communication alone where it has a closed form.

        Args:
            dims: hundreds of dims per device.
            phases_ms: measured; only the two communication phases count.
        """

    def fit_steps(
        self, optimizer: torch.optim.Optimizer, data: CostData, batches: Sequence[Int[Tensor, " B"]]
    ) -> float:
        """Take one optimizer step per batch of samples; returns the sum of the losses."""
        total = torch.zeros(())
        for chosen in batches:
            value = self.loss(data, chosen)
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(value)
            optimizer.step()
            total += value.detach()
        return float(total)

    def lower_bound_ms(self, latents: Float[Tensor, "T L"], num_devices: int) -> float | None:
        """A cost that no placement of these tables is predicted to be below; None where the network has no such bound."""
        del latents, num_devices
        return None


def shard_sums(latents: Float[Tensor, "T L"], device: Int[Tensor, "B T"], num_devices: int) -> Float[Tensor, "B D L"]:
    """Latents summed over each device's tables."""
    sums = latents.new_zeros(device.shape[0], num_devices, latents.shape[1])
    index = device[:, :, None].expand(-1, -1, latents.shape[1])
    return sums.scatter_add_(1, index, latents.expand(device.shape[0], -1, -1))


def predict_ms(
    network: CostNetwork, latents: Float[Tensor, "T L"], device: Int[Tensor, "B T"], num_devices: int
) -> Float[Tensor, " B"]:
    """Predicted overall cost of many placements of the same tables."""
    return network.overall_ms(shard_sums(latents, device, num_devices))


def mlp(sizes: tuple[int, ...]) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
