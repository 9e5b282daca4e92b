"""The cost model: what a device's tables cost, predicted from their features.

features        inputs of networks for a table; effects of other precisions, optimizers and batch sizes
cost_data       measured placements as tensors
cost_network    the interface of cost networks; their fit and error
paper           DreamShard's own network
structured      the default network
exchanges       costs of all-to-alls of any number of devices and hosts
compiled        the cost of a device as a compiled function
"""

from dreamshard.cost_model.cost_data import CostData
from dreamshard.cost_model.cost_network import (
    CostNetwork,
    PredictionError,
    TrainingDivergedError,
    gradient_step,
    mean_relative_error,
    mlp,
    prediction_error,
    rank_correlations,
    shard_latents,
    shard_sums,
)
from dreamshard.cost_model.features import FEATURES, NUM_PAPER_FEATURES, Normaliser
from dreamshard.cost_model.paper import PaperCostNetwork, TableNetwork
from dreamshard.cost_model.structured import StructuredCostNetwork

__all__ = [
    "FEATURES",
    "NUM_PAPER_FEATURES",
    "CostData",
    "CostNetwork",
    "Normaliser",
    "PaperCostNetwork",
    "PredictionError",
    "StructuredCostNetwork",
    "TableNetwork",
    "TrainingDivergedError",
    "gradient_step",
    "mean_relative_error",
    "mlp",
    "prediction_error",
    "rank_correlations",
    "shard_latents",
    "shard_sums",
]
