"""The bound that no placement is predicted to be below."""

from itertools import product

import pytest
import torch

from dreamshard.cost_model import predict_ms
from dreamshard.cost_model.paper import PaperCostNetwork
from dreamshard.placement import Placement
from dreamshard.search import DreamShardPlacer
from dreamshard.tasks import PlacementTask
from tests.helpers.tables import pool_of, tables_of
from tests.helpers.trained import learnt, learnt_placer


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("num_devices", [2, 3])
def test_every_placement_of_a_few_tables_is_predicted_above_it(seed, num_devices):
    network, normaliser = learnt().cost_network, learnt().normaliser
    with torch.no_grad():
        latents = network.encode(normaliser(pool_of(6, seed)))
        every = torch.tensor(list(product(range(num_devices), repeat=6)))
        cheapest = float(predict_ms(network, latents, every, num_devices).min())
    bound = network.lower_bound_ms(latents, num_devices)
    assert 0.1 * cheapest < bound <= cheapest


def test_every_placement_is_above_it_whatever_the_correction_has_learnt():
    network, normaliser = learnt().cost_network, learnt().normaliser
    kept = {name: value.clone() for name, value in network.state_dict().items()}
    try:
        torch.manual_seed(0)
        with torch.no_grad():
            network.output_weight.normal_(std=2.0)
            latents = network.encode(normaliser(pool_of(6, 9)))
            every = torch.tensor(list(product(range(2), repeat=6)))
            cheapest = float(predict_ms(network, latents, every, 2).min())
        assert network.lower_bound_ms(latents, 2) <= cheapest
    finally:
        network.load_state_dict(kept)


def test_one_table_on_one_device_is_bounded_by_its_own_cost():
    task = PlacementTask(tables_of([1000]), 1, 2**30)
    placer = learnt_placer()
    alone = Placement(torch.tensor([0]), 1)
    bound = placer.lower_bound_ms(task, alone)
    assert bound is not None
    assert 0.5 * placer.predict_overall_ms(task, alone) < bound <= placer.predict_overall_ms(task, alone)


def test_the_paper_s_network_has_none():
    state = learnt()
    placer = DreamShardPlacer(PaperCostNetwork(), state.policy, state.normaliser)
    task = PlacementTask(tables_of([1000, 1000]), 2, 2**30)
    assert placer.lower_bound_ms(task, Placement(torch.tensor([0, 1]), 2)) is None
