"""The cost model: what a device's tables cost, predicted from their features.

features             inputs of networks for a table
cost_data            measured placements as tensors
cost_network         the interface of cost networks; their fit and error
work_ratios          effects of other precisions, optimizers and batch sizes
paper                DreamShard's own network
structured           the default network
structured_formula   its latent columns, inputs and weights, which its compiled form shares
exchange_model       costs of all-to-alls of any number of devices and hosts
exchange_law         its law and curves
compiled             the cost of a device as a compiled function
prediction_metrics   errors of predictions
"""

from dreamshard.cost_model.cost_data import CostData
from dreamshard.cost_model.cost_network import (
    CostNetwork,
    PredictionError,
    TrainingDivergedError,
    fit,
    mlp,
    prediction_error,
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
    "fit",
    "mlp",
    "prediction_error",
    "shard_latents",
    "shard_sums",
]
