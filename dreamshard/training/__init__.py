"""Training: measure placements, fit the cost network, improve the policy, repeat.

config       settings of a training
algorithm    what can be trained is an object: start, propose, fit, improve, placer, save, load
algorithms   dreamshard, paper and autoshard, by name
files        a model as a folder
"""

from dreamshard.training.algorithm import CostFit, TrainedPlacer, TrainingAlgorithm, TrainingState
from dreamshard.training.algorithms import TRAINING_ALGORITHMS, load_placer, load_state, save_placer
from dreamshard.training.config import TrainingConfig, with_algorithm

__all__ = [
    "TRAINING_ALGORITHMS",
    "CostFit",
    "TrainedPlacer",
    "TrainingAlgorithm",
    "TrainingConfig",
    "TrainingState",
    "load_placer",
    "load_state",
    "save_placer",
    "with_algorithm",
]
