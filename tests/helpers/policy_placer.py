"""The policy alone as a placer: one greedy rollout, without search."""

from dataclasses import dataclass

import torch

from dreamshard.placement import Placement
from dreamshard.policy.mdp import Episode, rollout
from dreamshard.search.packing import packed
from dreamshard.tasks import PlacementTask
from dreamshard.training import TrainingState


@dataclass(frozen=True)
class PolicyPlacer:
    """Places by the policy of a training state; packs by size where the policy finds no room."""

    state: TrainingState
    name: str = "policy"

    @torch.no_grad()
    def place(self, task: PlacementTask, budget_ms: float | None = None) -> Placement:
        finished = rollout(self.state.policy, Episode.of(task, self.state.cost_network, self.state.normaliser))
        return Placement.whole(finished.device[0] if bool(finished.feasible[0]) else packed(task), task.num_devices)
