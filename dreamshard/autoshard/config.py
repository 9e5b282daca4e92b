"""Settings of AutoShard's training."""

import math
from dataclasses import asdict, dataclass, replace
from typing import Literal

from dreamshard.algorithms import TrainingConfig


@dataclass(frozen=True, kw_only=True)
class AutoShardConfig:
    """Settings of a training (`run_autoshard.py` of the authors' program), and those that this implementation adds.

    Attributes:
        iterations: rounds, each of measuring `placements_per_iteration` placements and learning.
        random_sets: share of the placements whose devices hold random sets of tables, rounded to one in a whole number of
            placements; the others are drawn from the policy.
        cost_steps: optimizer steps of the cost network per round, each on `cost_batch` measured shards.
        policy_updates: optimizer steps of the policy per round, each on `episodes` rollouts.
        updates_per_behaviour: policy updates on rollouts of one policy before new ones are drawn; V-trace corrects for it.
        entropy_weight: of the entropy bonus.
        value_weight: of the loss of the value estimate.
        discount: of rewards, per step.
        max_gradient_norm: to which gradients are clipped.
        cost_learning_rate: initial; falls linearly to a twentieth over the run, as `policy_learning_rate` does.
        warm_iterations: rounds of a training that starts from an earlier placer.
        warm_rate: initial learning rates of such a training, as a share of those above.
    """

    algorithm: Literal["autoshard"] = "autoshard"
    iterations: int = 10
    placements_per_iteration: int = 10
    random_sets: float = 0.5
    cost_steps: int = 300
    cost_batch: int = 128
    policy_updates: int = 30
    updates_per_behaviour: int = 2
    episodes: int = 24
    entropy_weight: float = 0.001
    value_weight: float = 0.5
    discount: float = 1.0
    max_gradient_norm: float = 40.0
    cost_learning_rate: float = 1e-3
    policy_learning_rate: float = 2e-3
    warm_iterations: int = 3
    warm_rate: float = 0.3

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            zero_allowed = name in ("entropy_weight", "random_sets")
            if not isinstance(value, str) and not (0 < value < math.inf or (value == 0 and zero_allowed)):
                raise ValueError(f"{name} is {value}, but training needs a number above 0; correct it")
        for name in ("random_sets", "discount"):
            if getattr(self, name) > 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but it is at most 1; lower it")

    @classmethod
    def of(cls, config: TrainingConfig) -> "AutoShardConfig":
        """The defaults with the rounds and placements of `config`, and steps in the same ratio to their defaults."""
        usual = TrainingConfig()
        return cls(
            iterations=config.iterations,
            placements_per_iteration=config.placements_per_iteration,
            cost_steps=max(1, round(cls.cost_steps * config.cost_steps / usual.cost_steps)),
            policy_updates=max(1, round(cls.policy_updates * config.policy_updates / usual.policy_updates)),
            warm_iterations=config.warm_iterations,
            warm_rate=config.warm_rate,
        )

    @property
    def measurements(self) -> int:
        """Placements measured in all rounds together."""
        return self.iterations * self.placements_per_iteration

    def warm(self) -> "AutoShardConfig":
        """The settings of a training that starts from an earlier placer: fewer rounds, lower learning rates."""
        return replace(
            self,
            iterations=min(self.warm_iterations, self.iterations),
            cost_learning_rate=self.warm_rate * self.cost_learning_rate,
            policy_learning_rate=self.warm_rate * self.policy_learning_rate,
        )
