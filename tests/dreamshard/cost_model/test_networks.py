"""What both kinds of cost network have in common, and their compiled form."""

import numpy as np
import pytest
import torch

from dreamshard.cost_model import Normaliser, shard_sums
from dreamshard.cost_model.compiled import phases_ms
from dreamshard.cost_model.paper import PaperCostNetwork
from dreamshard.cost_model.structured import WIDE, StructuredCostNetwork
from tests.helpers.tables import pool_of, tables_of
from tests.helpers.trained import learnt

POOL = pool_of(24)
NORMALISER = Normaliser.fit(POOL)


def network(kind):
    torch.manual_seed(0)
    return PaperCostNetwork() if kind == "paper" else StructuredCostNetwork(NORMALISER)


def predict_ms(network, latents, device, num_devices):
    return network.overall_ms(shard_sums(latents, device, num_devices))


both = pytest.mark.parametrize("kind", ["structured", "paper"])


@both
@torch.no_grad()
def test_a_prediction_does_not_depend_on_the_order_of_tables(kind):
    device, order = torch.arange(24) % 3, torch.randperm(24, generator=torch.Generator().manual_seed(0))
    latents = network(kind).encode(NORMALISER(POOL))
    before = predict_ms(network(kind), latents, device[None], 3)
    assert torch.allclose(predict_ms(network(kind), latents[order], device[order][None], 3), before, rtol=1e-5)


@both
@torch.no_grad()
def test_relabelling_devices_relabels_the_prediction(kind):
    device, other_names = torch.arange(24) % 3, torch.tensor([2, 0, 1])
    latents = network(kind).encode(NORMALISER(POOL))
    before = network(kind).phases_ms(shard_sums(latents, device[None], 3))[0]  # [D, 4]
    after = network(kind).phases_ms(shard_sums(latents, other_names[device][None], 3))[0]
    assert torch.allclose(after[other_names], before, rtol=1e-5)


@torch.no_grad()
def test_a_device_without_tables_computes_for_nothing():
    found = learnt().cost_network.phases_ms(torch.zeros(1, 2, learnt().cost_network.latent_size))
    assert found[..., [0, 3]].tolist() == [[[0.0, 0.0], [0.0, 0.0]]]


@both
@torch.no_grad()
def test_a_device_without_tables_has_no_phantom_table(kind):
    latents = network(kind).encode(NORMALISER(POOL))
    sums = shard_sums(latents, torch.zeros(1, 24, dtype=torch.int64), 2)
    assert sums[0, 1].tolist() == [0.0] * latents.shape[1]
    assert torch.allclose(sums[0, 0], latents.sum(0), rtol=1e-5)


@torch.no_grad()
def test_the_structured_network_predicts_more_for_more_tables():
    latents = learnt().cost_network.encode(learnt().normaliser(POOL))
    device = torch.stack([torch.zeros(24, dtype=torch.int64), torch.arange(24) % 2])
    all_on_one, shared = predict_ms(learnt().cost_network, latents, device, 2).tolist()
    assert all_on_one > shared > 0


@torch.no_grad()
def test_the_compiled_form_agrees_with_the_papers_network():
    chosen = network("paper")
    sums = shard_sums(chosen.encode(NORMALISER(POOL)), (torch.arange(24) % 3)[None], 3)[0]  # [D, L]
    found = np.zeros((3, 3))
    for d in range(3):
        phases_ms(chosen.law(3), sums[d].double().numpy(), found[d])
    assert np.allclose(found, chosen.phases_ms(sums)[:, [0, 3, 1]], rtol=1e-4, atol=1e-6)


@torch.no_grad()
def test_calibration_brings_both_compute_phases_to_the_measured_mean():
    chosen, generator = network("structured"), torch.Generator().manual_seed(0)
    device = torch.randint(3, (16, 24), generator=generator)
    sums = shard_sums(chosen.encode(NORMALISER(POOL)), device, 3)
    chosen.calibrate(sums, torch.tensor([1.0, 0.5, 0.5, 4.0]).expand(16, 3, 4).contiguous())
    assert torch.allclose(chosen.phases_ms(sums).mean(dim=(0, 1))[[0, 3]], torch.tensor([1.0, 4.0]), rtol=1e-3)


@both
@torch.no_grad()
def test_a_table_far_outside_the_pool_gets_a_finite_prediction(kind):
    huge = tables_of([10**9], dim=1024, pooling=500.0)
    latents = network(kind).encode(NORMALISER(huge))
    assert predict_ms(network(kind), latents, torch.zeros(1, 1, dtype=torch.int64), 2).isfinite().all()


@torch.no_grad()
def test_a_narrow_table_beside_a_wide_one_is_told_from_one_alone_once_that_has_been_learnt():
    tables = tables_of([1000, 1000, 1000, 1000], dim=[32, 36, 68, 256])
    chosen = StructuredCostNetwork(NORMALISER)
    latents = chosen.encode(NORMALISER(tables))  # [4, L]
    assert latents[:, WIDE].tolist() == [[0, 0], [1, 0], [1, 1], [1, 1]]
    shards = torch.stack([latents[0], latents[0] + latents[3], latents.sum(dim=0)])  # [3, L]
    assert (chosen.hidden_weight[:, :, 6:] == 0).all()  # what no sample has shown has no say
    torch.manual_seed(1)
    chosen.hidden_weight[:, :, 6:].normal_()
    chosen.output_weight.normal_()
    after = chosen.phases_ms(shards[None])
    chosen.hidden_weight[:, :, 6:] = 0
    blind = chosen.phases_ms(shards[None])
    assert torch.equal(after[0, 0], blind[0, 0])
    assert (after[0, 1:, [0, 3]] != blind[0, 1:, [0, 3]]).all()
