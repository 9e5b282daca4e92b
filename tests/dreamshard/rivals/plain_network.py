"""A cost network without training whose every prediction can be worked out by hand."""

import torch

from dreamshard.cost_model import Normaliser
from dreamshard.cost_model.structured import StructuredCostNetwork
from dreamshard.tables import Tables


def plain(tables: Tables, ms_per_widest_hundred_dims: float = 0.0) -> tuple[StructuredCostNetwork, Normaliser]:
    """Each compute phase costs `pooling x dim / 100` ms per table, each all-to-all so much per 100 dims of the widest
    device, times the share that leaves it."""
    normaliser = Normaliser.fit(tables)
    network = StructuredCostNetwork(normaliser)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        network.launch.fill_(-50.0)
        network.exchanges.fits = torch.tensor([[0.0, 0.0, 0.0, 0.0, *2 * [0.0, 0.0, ms_per_widest_hundred_dims, 0.0]]])
        network.exchanges.batch_size += 1
    return network, normaliser
