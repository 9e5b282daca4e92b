"""NeuroShard's three cost models: computation of a shard, forward and backward communication of all devices.

Architecture and training are those of the paper (Zha et al., MLSys 2023, arXiv 2305.01868) and of the authors' program
(`compute_cost_model.py`, `comm_cost_model.py`, `simulator.py`). A table's 20 features pass a table MLP 20-128-32 with
ReLU after both layers, the tables of a shard are summed, and 32-64-1 gives forward and backward compute together.
Backward communication is an MLP D-128-64-32-16-D of the devices' sums of dims. Forward communication is one of 2D inputs:
the sums of dims, and the times at which devices start, which are compute plus backward communication, counted from the
earliest. A placement costs the largest sum of the three of any device. Adam at 1e-3, batches of 512, squared error; the
weights with the least error on held-out samples are kept.

Differences from the paper:

- The models are fitted to the placements that a DreamShard training measured, 100 by default, and not pre-trained on up to
  100,000 shards and as many all-to-alls of their own. So 1,000 steps take the place of 1,000 epochs, and costs are divided
  by their mean, since so few steps do not find the scale of raw milliseconds.
- No shards of other dims are drawn. A model that has seen one dim only would guess what half a table costs: `knows_dims` is
  then false, and tables stay whole.
- Devices of a host are alike, so each step permutes them, and hosts with them; the paper draws many more samples instead.
- The testbeds time an all-to-all after a barrier, so no waiting for late devices is in what the forward model learns.
- A feature that is constant in the samples is not divided by a spread of 1e-6.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from dreamshard.cost_model import FEATURES, mlp
from dreamshard.cost_model.evaluator import Array, mlp_arrays, run_mlp
from dreamshard.cost_model.features import PAPER_FEATURES, features
from dreamshard.placer import NoPlacementError
from dreamshard.tasks import PlacementTask

SEEN = [FEATURES.index(name) for name in PAPER_FEATURES if name != "size"]
"""Columns of `FEATURES` that the compute model sees."""

_LATENT = 32


class ComputeModel(nn.Module):
    """Forward and backward compute of a shard, in units of the mean cost."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Sequential(*mlp((len(SEEN), 128, _LATENT)), nn.ReLU())
        self.shard = mlp((_LATENT, 64, 1))


class CommunicationModel(nn.Module):
    """What an all-to-all costs each device, from normalised figures of all of them."""

    def __init__(self, num_devices: int, num_figures: int) -> None:
        super().__init__()
        self.layers = mlp((num_figures * num_devices, 128, 64, 32, 16, num_devices))

    def forward(self, figures: Float[Tensor, "B G D"]) -> Float[Tensor, "B D"]:
        """Costs in units of their mean."""
        cost: Tensor = self.layers(figures.flatten(1))
        return cost


@dataclass(frozen=True)
class CommunicationCosts:
    """A fitted model with the statistics of its inputs (`[G, 1]`) and the mean of its outputs."""

    model: CommunicationModel
    mean: Float[Tensor, "G 1"]
    std: Float[Tensor, "G 1"]
    mean_ms: float

    def predicted_ms(self, figures: Float[Tensor, "B G D"]) -> Float[Tensor, "B D"]:
        """Milliseconds of each device."""
        cost: Tensor = self.model((figures - self.mean) / self.std) * self.mean_ms
        return cost


@dataclass(frozen=True)
class NeuroShardModels:
    """The fitted models, as what a search asks for costs (`ShardCosts`).

    A latent is 32 columns of the compute model and the table's dim, so that sums over tables have all that the models take.

    Attributes:
        num_devices: that the communication models were fitted for.
        num_measurements: placements that they were fitted to.
        knows_dims: whether the samples' tables differ in their dims.
    """

    compute: ComputeModel
    forward_comm: CommunicationCosts
    backward_comm: CommunicationCosts
    mean: Float[Tensor, " 20"]
    std: Float[Tensor, " 20"]
    mean_compute_ms: float
    num_devices: int
    num_measurements: int
    knows_dims: bool

    def for_task(self, task: PlacementTask) -> "NeuroShardModels":
        """These; raises NoPlacementError for another number of devices."""
        if task.num_devices != self.num_devices:
            raise NoPlacementError(
                f"neuroshard's communication models were fitted to placements on {self.num_devices} devices and have an "
                f"input for each, so they cannot place on {task.num_devices}; fit them to placements on that many, or use "
                "neuroshard_predicted"
            )
        return self

    @torch.no_grad()
    def encode(self, pieces: PlacementTask) -> Float[Tensor, "S 33"]:
        """Latents of tables or column shards."""
        seen = (features(pieces.tables)[:, SEEN] - self.mean) / self.std
        return torch.cat([self.compute.table(seen), pieces.tables.dim[:, None].float()], dim=1)

    def compute_ms(self) -> Callable[[Array], Array]:
        """A function from sums of latents `[N, 33]` to the shards' compute `[N]`, in NumPy."""
        layers, unit = mlp_arrays(self.compute.shard), np.float32(self.mean_compute_ms)

        def predicted(sums: Array) -> Array:
            cost: Array = run_mlp(layers, sums[:, :_LATENT])[:, 0] * unit
            return cost

        return predicted

    @torch.no_grad()
    def overall_ms(self, sums: Float[Tensor, "B D 33"]) -> Float[Tensor, " B"]:
        """The largest sum of compute and both communications of any device."""
        dims = sums[..., _LATENT]
        compute = self.compute.shard(sums[..., :_LATENT])[..., 0] * self.mean_compute_ms
        backward = self.backward_comm.predicted_ms(dims[:, None])
        forward = self.forward_comm.predicted_ms(torch.stack([dims, starts_ms(compute + backward)], dim=1))
        total: Tensor = (compute + backward + forward).amax(dim=1)
        return total


def starts_ms(busy_ms: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
    """When devices start an all-to-all, counted from the earliest."""
    return busy_ms - busy_ms.amin(dim=1, keepdim=True)
