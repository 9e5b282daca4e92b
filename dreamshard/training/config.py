"""Settings of a training, and those that an algorithm decides."""

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

Algorithm = Literal["dreamshard", "paper", "autoshard"]
"""Algorithms to train: this project's networks and search, DreamShard as published, and one after AutoShard."""


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Settings of Algorithm 1 (appendix B.5 of the paper), and those that this implementation adds.

    Attributes:
        iterations: rounds, each of measuring `placements_per_iteration` placements and learning.
        cost_steps: optimizer steps of a published cost network per round, each on `cost_batch` samples; dreamshard's own
            is fitted to all samples at once.
        policy_updates: optimizer steps of the policy per round, each on `episodes` rollouts; AutoShard takes three times
            as many.
        entropy_weight: of the entropy bonus.
        exploration: share of the placements that are random instead of drawn from the policy. The paper has 0.
        cost_learning_rate: initial; falls linearly over the run, as `policy_learning_rate` does.
        warm_iterations: rounds of a training that starts from an earlier placer.
        warm_rate: initial learning rates of such a training, as a share of those above.
        algorithm: that these settings belong to; `with_algorithm` changes it together with the settings that it decides.

    Raises:
        ValueError: a number is not above 0, or a share not from 0 to 1.

    >>> ds.TrainingConfig(iterations=5).measurements
    50
    """

    iterations: PositiveInt = 10
    placements_per_iteration: PositiveInt = 10
    cost_steps: PositiveInt = 300
    cost_batch: PositiveInt = 64
    policy_updates: PositiveInt = 10
    episodes: PositiveInt = 10
    entropy_weight: NonNegativeFloat = 0.001
    exploration: Annotated[float, Field(ge=0, le=1)] = 0.5
    cost_learning_rate: PositiveFloat = 1e-2
    policy_learning_rate: PositiveFloat = 1e-3
    warm_iterations: PositiveInt = 3
    warm_rate: PositiveFloat = 0.3
    algorithm: Algorithm = "dreamshard"

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


_DECIDED: dict[Algorithm, dict[str, Any]] = {
    "dreamshard": {},
    # appendix B.5; `train.py` and `training.py` of the authors' program
    "paper": {"exploration": 0.0, "cost_learning_rate": 5e-4, "policy_learning_rate": 5e-4},
    # `run_autoshard.py` of the authors' program
    "autoshard": {"cost_batch": 128, "episodes": 24, "cost_learning_rate": 1e-3, "policy_learning_rate": 2e-3},
}
"""Settings of each algorithm that differ from the defaults."""


def with_algorithm(config: TrainingConfig, algorithm: Algorithm) -> TrainingConfig:
    """The settings of `algorithm`, with the numbers of rounds, placements and steps of `config`.

    A config of the same algorithm stays as it is, so that a changed setting is kept.
    """
    if algorithm == config.algorithm:
        return config
    defaults = {name: getattr(TrainingConfig(), name) for decided in _DECIDED.values() for name in decided}
    return replace(config, algorithm=algorithm, **defaults | _DECIDED[algorithm])
