"""What can be trained: the algorithms by name, and the settings of Algorithm 1 that distinguish them.

- `dreamshard`: this project's default networks, and its search.
- `paper`: DreamShard as published (arXiv 2210.02023): the paper's networks, and placements by the greedy policy alone.
- `autoshard`: AutoShard as published (arXiv 2208.06399), which has further settings of its own.
"""

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from dreamshard.cost_model import Architecture
from dreamshard.names import ALGORITHMS as ALGORITHMS
from dreamshard.names import Algorithm as Algorithm
from dreamshard.policy.policy_network import PolicyKind


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Settings of Algorithm 1 (appendix B.5 of the paper), and those that this implementation adds.

    Attributes:
        iterations: rounds, each of measuring `placements_per_iteration` placements and learning.
        cost_steps: optimizer steps of the cost network per round, each on `cost_batch` samples.
        policy_updates: optimizer steps of the policy per round, each on `episodes` rollouts.
        entropy_weight: of the entropy bonus.
        exploration: share of the placements that are unbalanced at random instead of drawn from the policy, rounded to one
            in a whole number of placements. The paper has 0.
        cost_learning_rate: initial; falls linearly to a twentieth over the run, as `policy_learning_rate` does.
        warm_iterations: rounds of a training that starts from an earlier placer.
        warm_rate: initial learning rates of such a training, as a share of those above.
        algorithm: which these settings belong to; it decides the networks. `with_algorithm` changes it together with the
            settings that it decides.
    """

    iterations: int = 10
    placements_per_iteration: int = 10
    cost_steps: int = 300
    cost_batch: int = 64
    policy_updates: int = 10
    episodes: int = 10
    entropy_weight: float = 0.001
    exploration: float = 0.5
    cost_learning_rate: float = 1e-2
    policy_learning_rate: float = 1e-3
    warm_iterations: int = 3
    warm_rate: float = 0.3
    algorithm: Algorithm = "dreamshard"

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            zero_allowed = name in ("entropy_weight", "exploration")
            if not isinstance(value, str) and not (0 < value < math.inf or (value == 0 and zero_allowed)):
                raise ValueError(f"{name} is {value}, but training needs a number above 0; correct it")
        if self.exploration > 1:
            raise ValueError(f"exploration is {self.exploration}, but it is a share of the placements; give 0 to 1")
        if self.algorithm == "paper" and self.exploration:
            raise ValueError(
                f"exploration is {self.exploration:g}, but the algorithm 'paper' draws all placements from its policy; leave "
                "it out, or train 'dreamshard'"
            )

    @property
    def cost_network(self) -> Architecture:
        """Of the algorithm."""
        return "paper" if self.algorithm == "paper" else "structured"

    @property
    def policy(self) -> PolicyKind:
        """Of the algorithm."""
        return "paper" if self.algorithm == "paper" else "lookahead"

    @property
    def measurements(self) -> int:
        """Placements measured in all rounds together."""
        return self.iterations * self.placements_per_iteration

    def warm(self) -> "TrainingConfig":
        """The settings of a training that starts from an earlier placer: fewer rounds, lower learning rates."""
        return replace(
            self,
            iterations=min(self.warm_iterations, self.iterations),
            cost_learning_rate=self.warm_rate * self.cost_learning_rate,
            policy_learning_rate=self.warm_rate * self.policy_learning_rate,
        )


_AS_PUBLISHED: dict[str, Any] = {
    "exploration": 0.0,
    "cost_learning_rate": 5e-4,
    "policy_learning_rate": 5e-4,
    "entropy_weight": 0.001,
}
"""What `paper` decides (appendix B.5; `train.py` and `training.py` of the authors' program)."""


def with_algorithm(config: TrainingConfig, algorithm: Algorithm) -> TrainingConfig:
    """The settings of `algorithm`, with the numbers of rounds, placements and steps of `config`.

    Settings of the algorithm that `config` already has stay as they are, so that a changed setting is not lost. `autoshard`
    takes the numbers alone; its own settings are in `dreamshard/autoshard/`.
    """
    if algorithm == config.algorithm:
        return config
    settings = _AS_PUBLISHED
    if algorithm != "paper":
        settings = {field.name: field.default for field in fields(TrainingConfig) if field.name in _AS_PUBLISHED}
    return replace(config, algorithm=algorithm, **settings)
