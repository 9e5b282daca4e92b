"""Turn a policy and a cost network into the best placement found within a budget of work, or the policy alone into one.

Starting placements of the search are the policy's greedy rollout, sampled rollouts in one batch, greedy on the cost network,
and every rule of thumb; `search.py` continues from them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dreamshard.cost_model import CostNetwork, Normaliser, shard_latents, shard_sums
from dreamshard.costs import PHASES, DeviceCosts
from dreamshard.legality import violation
from dreamshard.placement import Placement
from dreamshard.placer import NoPlacementError
from dreamshard.policy.mdp import Episode, rollout
from dreamshard.policy.policy_network import PolicyNetwork
from dreamshard.search.network_costs import NetworkCosts
from dreamshard.search.search_costs import SearchCosts
from dreamshard.search.searching_placer import SearchingPlacer
from dreamshard.shards import Shards
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask

Inference = Literal["search", "policy"]
"""How a placement is found: by the search, or as in the paper (section 3.3) by the greedy policy alone."""

_COMPUTE = [PHASES.index("forward_compute"), PHASES.index("backward_compute")]
_SAMPLED_CELLS = 40_000  # limit of sampled rollouts x tables x devices


@dataclass(frozen=True)
class DreamShardPlacer(SearchingPlacer):
    """A trained policy and cost network.

    Attributes:
        rollouts: the most that are sampled besides the greedy one.
        budget_ms: for the search: as much work as an idle core does in this time; None for the task's own (`budget.py`).
            Starting placements always finish.
        columns: whether tables may be split by columns.
        inference: `policy` places whole tables without search or budget.
    """

    cost_network: CostNetwork
    policy: PolicyNetwork
    normaliser: Normaliser
    rollouts: int = 4
    budget_ms: float | None = None
    columns: bool = True
    inference: Inference = "search"

    @property
    def name(self) -> str:
        """`paper` for a placer by the policy alone."""
        return "paper" if self.inference == "policy" else "dreamshard"

    def costs(self, task: PlacementTask) -> SearchCosts:
        """See `SearchingPlacer`.

        Raises:
            ValueError: the network's architecture does not tell communication from compute.
        """
        return NetworkCosts.of(task, self.cost_network, self.normaliser)

    def starts(self, task: PlacementTask) -> Sequence[Int[Tensor, " T"]]:
        """See `SearchingPlacer`: the policy's greedy rollout, and sampled ones as far as their number is limited."""
        episode = Episode.of(task, self.cost_network, self.normaliser)
        devices = [rollout(self.policy, episode).device]
        sampled = min(self.rollouts, _SAMPLED_CELLS // episode.allowed.numel())
        if sampled:
            generator = torch.Generator().manual_seed(0)  # the same task gets the same placement
            devices.append(rollout(self.policy, episode, sampled, generator).device)
        return list(torch.cat(devices))

    def found(self, task: PlacementTask, budget_ms: float | None) -> Placement:
        """See `SearchingPlacer`; or the policy's own placement."""
        if self.inference == "search":
            return super().found(task, budget_ms)
        episode = Episode.of(task, self.cost_network, self.normaliser)
        placement = Placement.whole(rollout(self.policy, episode).device[0], task.num_devices)
        if broken := violation(task, placement):
            raise NoPlacementError(
                f"the policy alone found no legal placement of {task.name or 'the tables'}: {broken}; the published method "
                "knows only memory, pins and exclusions, and does not go back, so give the devices more memory, or use a "
                "placer that searches"
            )
        return placement

    @torch.no_grad()
    def predict(self, task: PlacementTask, placement: Placement) -> DeviceCosts:
        """`[D]` predicted milliseconds per phase of any placement of `task`; see `network_costs.py`.

        Raises:
            ValueError: tables are in host memory, or the network's architecture predicts whole tables and columns only.
        """
        if not placement.is_by_columns:
            return NetworkCosts.of(task, self.cost_network, self.normaliser).predict(task, placement)
        phases_ms = self.cost_network.for_task(task).phases_ms(self.sums(task, placement)[0])
        return DeviceCosts.from_phases(phases_ms.clamp(min=0))

    @torch.no_grad()
    def sums(self, task: PlacementTask, placement: Placement) -> Float[Tensor, "1 D L"]:
        """Latents of whole tables and column shards, summed over each device."""
        shards = Shards.of(task, placement)
        latents = shard_latents(self.cost_network, self.normaliser, shards.as_task(task), task.tables)
        return shard_sums(latents, shards.device[None], task.num_devices)

    @torch.no_grad()
    def alone_ms(self, tables: Tables) -> Float[Tensor, "T 2"]:
        """Predicted forward and backward compute of each table alone on a device, in the setting that was measured."""
        latents = self.cost_network.encode(self.normaliser(tables))
        return self.cost_network.phases_ms(latents[:, None, :])[:, 0, _COMPUTE].clamp(min=0)
