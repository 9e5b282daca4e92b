"""The cost model: what a device's tables cost, predicted from their features.

features             what networks see of a table
cost_data            measured placements as tensors
network              what the rest of the package asks of a cost network; its fit and its error
work_ratios          what other precisions, optimizers and batch sizes change
paper                DreamShard's own network
structured           the default network
structured_formula   its latent columns, inputs and weights, which its other forms share
structured_evaluator it in NumPy, for placing
communication_fit    its all-to-alls from placements of one topology
exchange_model       what is known of all-to-alls of any number of devices and hosts
exchange_law         its law and curves
evaluator            what placing asks of a network in NumPy
"""

from collections.abc import Mapping
from typing import Any

from dreamshard.cost_model.cost_data import CostData
from dreamshard.cost_model.cost_network import (
    Architecture,
    CostModel,
    CostNetwork,
    PredictionError,
    TrainingDivergedError,
    fit,
    mlp,
    predict_ms,
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
    "Architecture",
    "CostData",
    "CostModel",
    "CostNetwork",
    "Normaliser",
    "PaperCostNetwork",
    "PredictionError",
    "StructuredCostNetwork",
    "TableNetwork",
    "TrainingDivergedError",
    "fit",
    "mlp",
    "new_cost_network",
    "predict_ms",
    "prediction_error",
    "shard_latents",
    "shard_sums",
]


def new_cost_network(
    architecture: Architecture, normaliser: Normaliser, arguments: Mapping[str, Any] | None = None
) -> CostNetwork:
    """An untrained network; its weights are drawn from torch's global generator.

    `arguments` holds what `CostNetwork.arguments` returned, possibly among other entries; None for the defaults.

    Raises:
        KeyError: `arguments` lacks one of the architecture's.
    """
    if architecture == "paper":
        return PaperCostNetwork()
    if arguments is None:
        return StructuredCostNetwork(normaliser)
    return StructuredCostNetwork(normaliser, arguments["members"], arguments["hidden"])
