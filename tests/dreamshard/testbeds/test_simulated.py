import pytest
import torch

from dreamshard.costs import Exchange
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.placement import SHARDING_TYPES, Placement
from dreamshard.shards import Shards
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.simulated import SimulatedTestbed
from tests.helpers.cluster_testbed import placement
from tests.helpers.lookups import EvenLookups
from tests.helpers.tables import roomy_task, tables_of_dims
from tests.helpers.testbeds import any_sharding_task, every_way

V100 = PRESETS["v100"]
DIMS = [4, 8, 16, 32, 64, 128]


def make_testbed(seed: int = 0, noise: float = 0.01) -> SimulatedTestbed:
    setup = TestbedSetup(num_devices=2, batch_size=4096, lookups=EvenLookups(4096), seed=seed)
    return SimulatedTestbed(setup, V100, noise)


def exchange(*sent_bytes: int) -> Exchange:
    return Exchange(sent_bytes=torch.tensor(sent_bytes))


def test_the_same_seed_and_content_cost_the_same_in_any_order():
    task, first, second = roomy_task(tables_of_dims(DIMS)), placement(0, 0, 0, 1, 1, 1), placement(0, 1, 0, 1, 0, 1)
    one, other = make_testbed(), make_testbed()
    forwards = [one.measure(task, each).overall_ms for each in (first, second)]
    assert forwards[::-1] == [other.measure(task, each).overall_ms for each in (second, first)]
    other.measure_exchange(exchange(9, 9))
    again = [bed.measure_exchange(exchange(5, 7)).forward_ms for bed in (one, other, make_testbed(noise=0.0))]
    assert torch.equal(again[0], again[1])
    assert not torch.equal(again[0], again[2])


def test_noise_is_relative_and_of_the_size_asked_for():
    task, noisy, exact = roomy_task(tables_of_dims([16] * 12)), make_testbed(noise=0.01), make_testbed(noise=0.0)
    ratios = []
    for i in range(60):
        where = placement(*[(i >> bit) & 1 for bit in range(12)])
        expected = exact.measure(task, where).costs.phases_ms
        ratios.append((noisy.measure(task, where).costs.phases_ms / expected)[expected > 0])
    ratios = torch.cat(ratios)
    assert ratios.mean().item() == pytest.approx(1, abs=0.003)
    assert ratios.std().item() == pytest.approx(0.01, rel=0.1)


def test_an_exchange_costs_the_same_as_in_a_placement():
    bed, task = make_testbed(noise=0.0), roomy_task(tables_of_dims(DIMS))
    costs = bed.measure(task, placement(0, 0, 0, 1, 1, 1)).costs
    alone = bed.measure_exchange(exchange(4 * 4096 * sum(DIMS[:3]), 4 * 4096 * sum(DIMS[3:])))
    torch.testing.assert_close(alone.forward_ms, costs.phases_ms[..., 1])
    torch.testing.assert_close(alone.backward_ms, costs.phases_ms[..., 2])
    assert (alone.hardware, alone.clock, alone.host_devices) == ("simulated v100", "model", V100.devices_per_node)


@pytest.mark.parametrize("way", SHARDING_TYPES)
def test_every_way_to_shard_has_costs_that_repeat(way):
    task = any_sharding_task(tables_of_dims([64], rows=10_000, pooling=8.0), 4, devices_per_host=2)
    where = Placement((every_way(64)[way],), 4, 2)
    one, again = make_testbed().measure(task, where).costs, make_testbed().measure(task, where).costs
    assert torch.equal(one.phases_ms, again.phases_ms)
    holding = torch.zeros(4, dtype=torch.bool)
    holding[Shards.of(task, where).device] = True
    assert torch.equal(one.phases_ms[..., 0] > 0, holding)
    assert (one.phases_ms[..., 1] > 0).all() == (way != "data_parallel")
    assert (one.phases_ms[..., 2] > 0).all()
