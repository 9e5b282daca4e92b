"""What both kinds of cost network have in common."""

import pytest
import torch

from dreamshard.cost_model import Normaliser, PaperCostNetwork, StructuredCostNetwork
from dreamshard.cost_model.compiled import WIDE
from tests.helpers.tables import pool_of, shard_sums, tables_of
from tests.helpers.trained import learnt

POOL = pool_of(24)
NORMALISER = Normaliser.fit(POOL)
DEVICE = torch.arange(24) % 3


@pytest.fixture(autouse=True)
def _without_gradients():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def structured():
    return StructuredCostNetwork(NORMALISER)


def of_devices(network, latents, device, num_devices=3):
    return network.phases_ms(shard_sums(latents, device[None], num_devices))[0]  # [D, 4]


both = pytest.mark.parametrize("network", [structured, PaperCostNetwork])


@both
def test_a_prediction_depends_on_devices_not_on_table_order(network):
    network, order, names = network(), torch.randperm(24), torch.tensor([2, 0, 1])
    latents = network.encode(NORMALISER(POOL))
    before = of_devices(network, latents, DEVICE)
    assert torch.allclose(of_devices(network, latents[order], DEVICE[order]), before, rtol=1e-5)
    assert torch.allclose(of_devices(network, latents, names[DEVICE])[names], before, rtol=1e-5)


@both
def test_a_table_far_outside_the_pool_gets_a_finite_prediction(network):
    network, huge = network(), tables_of([10**9], dim=1024, pooling=500.0)
    sums = shard_sums(network.encode(NORMALISER(huge)), torch.zeros(1, 1, dtype=torch.int64), 2)
    assert network.overall_ms(sums).isfinite().all()


def test_more_tables_cost_more_and_none_compute_for_nothing():
    network = learnt().cost_network
    latents = network.encode(learnt().normaliser(POOL))
    device = torch.stack([torch.zeros(24, dtype=torch.int64), torch.arange(24) % 2])
    sums = shard_sums(latents, device, 2)
    assert sums[0, 1].tolist() == [0.0] * latents.shape[1]
    assert network.phases_ms(sums)[0, 1, [0, 3]].tolist() == [0.0, 0.0]
    all_on_one, shared = network.overall_ms(sums).tolist()
    assert all_on_one > shared > 0


def test_a_network_tells_a_narrow_table_by_a_wide_one():
    network, tables = structured(), tables_of([1000, 1000, 1000, 1000], dim=[32, 36, 68, 256])
    latents = network.encode(NORMALISER(tables))  # [4, L]
    wide = slice(WIDE, WIDE + 2)
    assert latents[:, wide].tolist() == [[0, 0], [1, 0], [1, 1], [1, 1]]
    devices = torch.stack([latents[0], latents[0] + latents[3]])[None]  # [1, 2, L]
    before = network.phases_ms(devices)[0][:, [0, 3]]
    network.exponent[:, -2:] = 0.1
    after = network.phases_ms(devices)[0][:, [0, 3]]
    assert torch.equal(after[0], before[0])
    assert (after[1] > before[1]).all()
