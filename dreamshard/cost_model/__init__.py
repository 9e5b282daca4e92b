"""The cost model: what a device's tables cost, predicted from their features.

features             what networks see of a table
cost_data            measured placements as tensors
network              what the rest of the package asks of a cost network
paper                DreamShard's own network
structured           the default network
structured_formula   its latent columns, inputs and weights, which its other forms share
analytic_gradient    its gradient by hand, for fitting
structured_evaluator it in NumPy, for placing
lower_bound          a cost that no placement is predicted to be below
evaluator            what placing asks of a network in NumPy
fitting              fit a network, and measure its error
"""

from dreamshard.cost_model.cost_data import CostData
from dreamshard.cost_model.features import FEATURES, NUM_PAPER_FEATURES, Normaliser
from dreamshard.cost_model.fitting import PredictionError, TrainingDivergedError, fit, prediction_error
from dreamshard.cost_model.network import Architecture, CostNetwork, mlp, predict_ms, shard_sums
from dreamshard.cost_model.networks import new_cost_network

__all__ = [
    "FEATURES",
    "NUM_PAPER_FEATURES",
    "Architecture",
    "CostData",
    "CostNetwork",
    "Normaliser",
    "PredictionError",
    "TrainingDivergedError",
    "fit",
    "mlp",
    "new_cost_network",
    "predict_ms",
    "prediction_error",
    "shard_sums",
]
