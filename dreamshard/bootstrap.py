"""Which differences of predicted cost do the measurements support? A cost network of members that each saw others of them.

A search that minimises a prediction also finds the prediction's errors: the more the measurements scatter, the less of what
it gains is real. Members that are fitted to bootstrap samples of the measurements err differently, so a gain that all of them
predict is one of the placement (Efron 1979, the bootstrap; Breiman 1996, bagging). A vote is the mean of two members, which
loses fewer real gains than votes of one, and lets as few unreal ones pass.

A measurement counts in a member's loss as often as a Poisson variable of mean 1 says, which is the bootstrap of a growing
list: earlier measurements keep their weights as later ones are added. All members are fitted in one pass. Communication is
fitted to all measurements, the same for every member.

Votes also reject gains that are real, the more so the further a task is from those that were measured. So they are asked only
where new measurements differ from their predictions by more than `PREDICTABLE_ERROR`; below, a search gains more than it is
misled by.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.cost_model import (
    CostData,
    CostNetwork,
    Normaliser,
    StructuredCostNetwork,
    fit,
    shard_latents,
    shard_sums,
)
from dreamshard.placement import Placement
from dreamshard.tasks import PlacementTask

MEMBERS_PER_VOTE = 2
PREDICTABLE_ERROR = 0.04
"""Mean relative error of new measurements up to which a search is trusted without votes."""


@dataclass
class BootstrapFit:
    """The network with what a training needs to continue.

    Attributes:
        network: a member per bootstrap sample.
        optimizer: of its weights.
    """

    network: StructuredCostNetwork
    optimizer: torch.optim.Optimizer

    @classmethod
    def start(cls, normaliser: Normaliser, votes: int) -> "BootstrapFit":
        """Untrained, with weights from torch's global generator."""
        network = StructuredCostNetwork(normaliser, MEMBERS_PER_VOTE * votes)
        return cls(network, torch.optim.Adam(network.parameters(), fused=True))

    def start_from(self, earlier: CostNetwork) -> None:
        """Take the weights of an earlier bootstrap network; those of a network of other members are given out in turn."""
        of_members = {name: len(value) for name, value in self.network.named_parameters()}
        self.network.load_state_dict(
            {
                name: value[torch.arange(of_members[name]) % len(value)] if name in of_members else value
                for name, value in earlier.state_dict().items()
            }
        )
        self.network.measured_on = earlier.measured_on

    def fit(self, data: CostData, *, first: bool, rate: float, steps: int, batch: int, seed: int) -> None:
        """Fit the members to their bootstrap samples of `data`.

        Args:
            data: all measurements so far, in the order in which they were made.
            first: whether the network is untrained.
            rate: the learning rate.
            steps: of the optimizer.
            batch: measurements per step.
            seed: of the batches.

        Raises:
            TrainingDivergedError: the loss is not finite.
        """
        self.network.prepare(data, first=first)
        self.optimizer.param_groups[0]["lr"] = rate
        drawn = replace(data, weights=bootstrap_weights(self.network.members, len(data.task_names)))
        generator = torch.Generator().manual_seed(seed)
        fit(self.network, self.optimizer, drawn, steps=steps, batch=batch, generator=generator)


def bootstrap_weights(members: int, measurements: int) -> Float[Tensor, "M S"]:
    """How often each measurement counts for each member; more measurements leave the weights of the earlier ones alone."""
    drawn = [np.random.default_rng(member).poisson(1.0, measurements) for member in range(members)]
    return torch.from_numpy(np.stack(drawn).astype(np.float32))


@torch.no_grad()
def supported_gain(
    network: StructuredCostNetwork,
    normaliser: Normaliser,
    task: PlacementTask,
    better: Placement,
    other: Placement,
) -> bool:
    """Whether every vote says that `better` costs less than `other`."""
    own = network.for_task(task)
    better_ms, other_ms = (votes_ms(own, _sums(own, normaliser, task, placement)) for placement in (better, other))
    return bool((better_ms < other_ms).all())


def votes_ms(network: StructuredCostNetwork, sums: Float[Tensor, "*B D L"]) -> Float[Tensor, "*B V"]:
    """The overall cost by each vote."""
    members_ms = network.member_overall_ms(sums)
    return members_ms.reshape(*members_ms.shape[:-1], -1, MEMBERS_PER_VOTE).mean(dim=-1)


def _sums(
    network: StructuredCostNetwork, normaliser: Normaliser, task: PlacementTask, placement: Placement
) -> Float[Tensor, "D L"]:
    sharded, placement = task.sharded(placement)
    latents = shard_latents(network, normaliser, sharded, task.tables)
    return shard_sums(latents, placement.device[None], task.num_devices)[0]
