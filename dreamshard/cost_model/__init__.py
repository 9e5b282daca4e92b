"""The cost model: costs of a device's tables, predicted from their features.

cost_network    inputs of networks for a table; effects of other precisions, optimizers and batch sizes; measured placements
                as tensors; the interface of cost networks, their fit and error; DreamShard's own network
structured      the default network
exchanges       all-to-alls of any number of devices and hosts: which to measure, and their costs
compiled        the cost of a device as a compiled function
"""

from dreamshard.cost_model.cost_network import (
    CostData,
    CostNetwork,
    Normaliser,
    PaperCostNetwork,
    TableNetwork,
    TrainingDivergedError,
    gradient_step,
    mean_relative_error,
    mlp,
    prediction_error,
)
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
