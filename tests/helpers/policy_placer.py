"""The policy alone as a placer: one greedy rollout, without search."""

from dataclasses import dataclass

import torch

from dreamshard.baselines import packed
from dreamshard.placement import Placement
from dreamshard.policy.mdp import episodes_of
from dreamshard.policy.rollout import rollout
from dreamshard.tasks import PlacementTask
from dreamshard.training import TrainingState


@dataclass(frozen=True)
class PolicyPlacer:
    """Places by the policy of a training state; packs by size where the policy finds no room."""

    state: TrainingState
    name: str = "policy"

    @torch.no_grad()
    def place(self, task: PlacementTask, budget_ms: float | None = None) -> Placement:
        network = self.state.cost_network.for_task(task)
        finished = rollout(self.state.policy, network, episodes_of([task], network, self.state.normaliser), None)
        return Placement.whole(finished.device[0] if bool(finished.feasible[0]) else packed(task), task.num_devices)
