"""Cost networks by their architecture."""

from collections.abc import Mapping
from typing import Any

from dreamshard.cost_model.features import Normaliser
from dreamshard.cost_model.network import Architecture, CostNetwork
from dreamshard.cost_model.paper import PaperCostNetwork
from dreamshard.cost_model.structured import StructuredCostNetwork


def new_cost_network(
    architecture: Architecture, normaliser: Normaliser, arguments: Mapping[str, Any] | None = None
) -> CostNetwork:
    """An untrained network; its weights are drawn from torch's global generator.

    Args:
        architecture: which network.
        normaliser: of the features that it will see.
        arguments: what `CostNetwork.arguments` returned, possibly among other entries; None for the defaults.

    Raises:
        KeyError: `arguments` lacks one of the architecture's.
    """
    if architecture == "paper":
        return PaperCostNetwork()
    if arguments is None:
        return StructuredCostNetwork(normaliser)
    return StructuredCostNetwork(normaliser, arguments["members"], arguments["hidden"])
