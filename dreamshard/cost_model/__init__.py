"""The cost model: costs of a device's tables, predicted from their features.

features        inputs of networks for a table; effects of other precisions, optimizers and batch sizes
cost_network    measured placements as tensors; the interface of cost networks, their fit and error
paper           DreamShard's own network
structured      the default network
exchanges       all-to-alls of any number of devices and hosts: which to measure, and their costs
compiled        the cost of a device as a compiled function
"""

from dreamshard.cost_model.cost_network import (
    CostData,
    CostNetwork,
    TrainingDivergedError,
    gradient_step,
    mean_relative_error,
    mlp,
    prediction_error,
)
from dreamshard.cost_model.features import Normaliser
from dreamshard.cost_model.paper import PaperCostNetwork, TableNetwork
from dreamshard.cost_model.structured import StructuredCostNetwork

__all__ = [
    "CostData",
    "CostNetwork",
    "Normaliser",
    "PaperCostNetwork",
    "StructuredCostNetwork",
    "TableNetwork",
    "TrainingDivergedError",
    "gradient_step",
    "mean_relative_error",
    "mlp",
    "prediction_error",
]
