"""The gradient by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dreamshard.cost_model import CostData, Normaliser, fit
from dreamshard.cost_model.analytic_gradient import StructuredFit
from dreamshard.cost_model.structured import StructuredCostNetwork
from dreamshard.placement import Placement
from dreamshard.task_sampling import sample_tasks
from tests.dreamshard.search.test_column_splits import GENEROUS
from tests.helpers.tables import pool_of
from tests.helpers.testbeds import simulated


def prepared(seed=0):
    pool = replace(pool_of(30, seed), dim=torch.tensor([4, 16, 48, 96, 256]).repeat(6))  # shards of every width
    generator = torch.Generator().manual_seed(seed)
    tasks = sample_tasks(pool, 12, 9, 3, GENEROUS, generator)
    testbed = simulated()
    samples = []
    for i, task in enumerate(tasks):
        device = torch.randint(2 if i % 3 == 0 else 3, (9,), generator=generator)  # a third leave a device empty
        samples.append(testbed.measure(task, Placement(device, 3)))
    data = CostData.of(samples, Normaliser.fit(pool))
    torch.manual_seed(seed)
    network = StructuredCostNetwork(Normaliser.fit(pool), members=3, hidden=5)
    with torch.no_grad():
        network.output_weight.normal_(std=0.5)
        network.hidden_weight.normal_(std=0.4)
    network.prepare(data, first=True)
    return network, data


def test_it_is_the_automatic_gradient():
    network, data = prepared()
    chosen = torch.tensor([0, 3, 4, 7, 11])
    expected = network.loss(data, chosen)
    expected.backward()
    by_hand = StructuredFit(dict(network.named_parameters()), network.scale_ms, torch.optim.Adam(network.parameters()))
    value = by_hand.gradient(network.fit_data(data), chosen.numpy())
    assert value == pytest.approx(float(expected.detach()), rel=1e-4)
    for name, parameter in by_hand.parameters.items():
        exact = parameter.grad.numpy().ravel()
        assert np.abs(by_hand.grad_view[name].ravel() - exact).max() < 2e-4 * np.abs(exact).max() + 1e-7, name


def test_its_steps_are_those_of_the_library_s_optimizer():
    network, data = prepared()
    other, _ = prepared()
    other.load_state_dict(network.state_dict())
    ours, library = (torch.optim.Adam(each.parameters(), lr=0.01) for each in (network, other))
    for seed in (1, 2):  # twice, so that moments are handed over between fits
        fit(network, ours, data, steps=5, batch=8, generator=torch.Generator().manual_seed(seed))
        generator = torch.Generator().manual_seed(seed)
        for _ in range(5):
            library.zero_grad()
            other.loss(data, torch.randperm(12, generator=generator)[:8]).backward()
            library.step()
    for (name, mine), (_, theirs) in zip(network.named_parameters(), other.named_parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=2e-3), name
