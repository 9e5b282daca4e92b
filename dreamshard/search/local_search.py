"""Improve a placement by the predicted cost: step by step, and from a few tables moved at random.

See `hill_climber.py`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dreamshard.cost_model.evaluator import Indices, ShardEvaluator
from dreamshard.limits import PlacementLimits
from dreamshard.search.background import Background
from dreamshard.search.budget import Budget
from dreamshard.search.hill_climber import TOLERANCE, HillClimber

_NEARLY = 1.02  # of the best cost: placements of column shards up to there may be cheaper once shards are joined
_PERTURBED_TABLES = 4


@dataclass(frozen=True)
class LocalSearch:
    """Local search among placements of the same tables.

    Attributes:
        evaluator: of the cost network.
        latents: `[T, L]` of the tables.
        table_bytes: `[T]`.
        capacity_bytes: of every device, or `[D]`.
        num_devices: `D`.
        limits: where tables may be beside room; None for anywhere.
        background: what the devices hold and wait for beside these tables; None for nothing.
    """

    evaluator: ShardEvaluator
    latents: Float[Tensor, "T L"]
    table_bytes: Int[Tensor, " T"]
    capacity_bytes: int | Int[Tensor, " D"]
    num_devices: int
    limits: PlacementLimits | None = None
    background: Background | None = None

    def improve(
        self,
        starts: Int[Tensor, "S T"],
        perturbations: int,
        budget: Budget,
        seed: int = 0,
        visit: Callable[[Int[Tensor, " T"]], None] | None = None,
    ) -> Int[Tensor, " T"]:
        """Improve every start, then repeatedly the best placement after moving a few of its tables at random.

        Args:
            starts: legal placements, the most promising first.
            perturbations: the most random changes of the best placement.
            budget: what may be spent.
            seed: of the random changes.
            visit: is called with placements on the way, the same ones whatever the budget, and more of them with a larger
                one: after 1, 2, 4, ... steps from the first start, and where nothing helps any more, if that is nearly
                as good as the best.

        Returns:
            A legal placement that is not predicted to cost more than the first start.
        """
        best = self._climb(starts[0].numpy(), budget, visit)
        generator = np.random.default_rng(seed)
        for i in range(1, len(starts) + perturbations):
            if budget.is_over():
                break
            device = starts[i].numpy() if i < len(starts) else self._perturbed(best.device, generator)
            if (other := self._climb(device, budget, None)).overall_ms < best.overall_ms:
                best = other
            if visit is not None and not budget.is_over() and other.overall_ms < best.overall_ms * _NEARLY:
                visit(torch.from_numpy(other.device))
        return torch.from_numpy(best.device)

    def climbed(self, device: Int[Tensor, " T"], most_steps: int) -> tuple[Int[Tensor, " T"], float]:
        """A placement after steps that help, and what the evaluator says that it costs.

        Args:
            device: legal placement to start from.
            most_steps: the most that are taken, whatever a budget says.
        """
        climber = self._climb(device.numpy(), Budget(math.inf), None, most_steps)
        return torch.from_numpy(climber.device), climber.overall_ms

    def _climb(
        self,
        device: Indices,
        budget: Budget,
        visit: Callable[[Int[Tensor, " T"]], None] | None,
        most_steps: int | None = None,
    ) -> HillClimber:
        """Step until nothing helps; at most `2 D` steps in a row that only relieve a device."""
        climber = HillClimber(
            self.evaluator,
            self.latents.numpy(),
            self.table_bytes.numpy(),
            np.asarray(self.capacity_bytes),
            self.num_devices,
            device,
            self.limits,
            self.background,
        )
        plateau = steps = 0
        while steps != most_steps and not budget.is_over():
            before = climber.overall_ms
            stuck = plateau > 2 * self.num_devices or not (climber.step(widest=False) or climber.step(widest=True))
            steps += 1
            budget.spend(climber.step_units)
            if visit is not None and (stuck or steps & (steps - 1) == 0):
                visit(torch.from_numpy(climber.device.copy()))
            if stuck:
                break
            plateau = 0 if climber.overall_ms < before * (1 - TOLERANCE) else plateau + 1
        return climber

    def _perturbed(self, device: Indices, generator: np.random.Generator) -> Indices:
        """A copy with up to `_PERTURBED_TABLES` tables on other devices that have room."""
        perturbed, sizes = device.copy(), self.table_bytes.numpy()
        used = np.bincount(device, weights=sizes, minlength=self.num_devices).astype(np.int64)
        if self.background is not None:
            used += self.background.used_bytes
        room = np.broadcast_to(np.asarray(self.capacity_bytes), used.shape)
        for table in generator.integers(len(device), size=_PERTURBED_TABLES).tolist():
            target = int(generator.integers(self.num_devices))
            if self.limits is not None and not self.limits.may_go(table, _without(perturbed, table))[target]:
                continue
            if used[target] + sizes[table] <= room[target]:
                used[perturbed[table]] -= sizes[table]
                used[target] += sizes[table]
                perturbed[table] = target
        return perturbed


def _without(device: Indices, table: int) -> Indices:
    """The placement with one table nowhere."""
    others = device.copy()
    others[table] = -1
    return others
