"""Training: measure placements, fit the cost network, improve the policy, repeat.

config       settings of a training
algorithms   dreamshard, paper and autoshard as objects: start, propose, fit, improve, placer, save; and their files
autoshard    networks, episodes and placer of autoshard
"""

from dreamshard.training.algorithms import (
    TRAINING_ALGORITHMS,
    TrainedPlacer,
    TrainingAlgorithm,
    TrainingState,
    load_placer,
    load_state,
    save_placer,
    train,
)
from dreamshard.training.config import TrainingConfig, with_algorithm

__all__ = [
    "TRAINING_ALGORITHMS",
    "TrainedPlacer",
    "TrainingAlgorithm",
    "TrainingConfig",
    "TrainingState",
    "load_placer",
    "load_state",
    "save_placer",
    "train",
    "with_algorithm",
]
