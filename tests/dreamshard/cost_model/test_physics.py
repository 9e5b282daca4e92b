"""Physics by construction: whatever the weights, more of anything never makes a device of the structured network cheaper."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from dreamshard.cost_model import Normaliser, StructuredCostNetwork
from dreamshard.cost_model.compiled import PLAIN, SQUARES, TABLES, computes_ms
from dreamshard.cost_model.structured import PRIORS, crowded_work
from dreamshard.tables import Tables, concatenate
from tests.helpers.tables import pool_of
from tests.helpers.trained import learnt

POOL = pool_of(40)
NORMALISER = Normaliser.fit(POOL)
ROUNDING = 1 + 1e-5  # latents are float32


@cache
def network_of(seed: int) -> StructuredCostNetwork:
    """With random weights within their bounds, some of which are 0; -1 is a trained one."""
    if seed < 0:
        return learnt().cost_network
    generator, network = torch.Generator().manual_seed(seed), StructuredCostNetwork(NORMALISER)
    for name, weight in network.named_parameters():
        drawn = weight.detach() + 3 * PRIORS[name].scale * torch.randn(weight.shape, generator=generator)
        weight.data = drawn.clamp(min=PRIORS[name].least)
    network.centre = torch.randn(4, 6, generator=generator)
    network.exchanges.fitted_ms = torch.rand(2, 6, generator=generator)
    network.exchanges.batch_size = torch.tensor(1024)
    network.exchanges.fitted_to = torch.tensor([2, 2])
    return network


def phases_ms(network: StructuredCostNetwork, tables: Tables) -> torch.Tensor:
    """`[4]` of a device with all tables, the first of two."""
    normaliser = NORMALISER if network is not learnt().cost_network else learnt().normaliser
    with torch.no_grad():
        sums = network.encode(normaliser(tables)).double().sum(0)
        both_ms = network.phases_ms(torch.stack([sums, 0 * sums])[None].float())[0].double()
    assert both_ms[1, [0, 3]].tolist() == [0, 0], "a device without tables computes for nothing"
    return both_ms[0]


weights = st.integers(-1, 40)
some = st.lists(st.integers(0, len(POOL) - 1), min_size=1, max_size=20, unique=True)


@given(weights, some, st.integers(0, len(POOL) - 1))
def test_one_more_table_never_makes_a_device_cheaper_in_any_phase(seed, held, more):
    network, tables = network_of(seed), POOL.select(held)
    other = replace(POOL.select([more]), names=("other",))
    assert (phases_ms(network, concatenate([tables, other])) * ROUNDING >= phases_ms(network, tables)).all()


@given(weights, some, st.sampled_from(["dim", "rows", "pooling_factor"]), st.floats(1.0, 8.0))
def test_more_columns_rows_or_lookups_of_a_table_never_make_a_device_cheaper(seed, held, which, times):
    network, tables = network_of(seed), POOL.select(held)
    values = getattr(tables, which).clone()
    grown = values[0].double() * times
    values[0] = 4 * (grown / 4).ceil() if which == "dim" else grown
    more = replace(tables, **{which: values})
    assert (phases_ms(network, more) * ROUNDING >= phases_ms(network, tables)).all()


@pytest.mark.parametrize("seed", [-1, 3, 7])
def test_compiled_and_torch_compute_the_same(seed):
    network, generator = network_of(seed), np.random.default_rng(0)
    loads = generator.uniform(1, 20, (50, TABLES + 1))
    law = network.law(2).network
    with torch.no_grad():
        numbers = (value.double() for value in (network.centre, network.exponent, network.power))
        crowded = crowded_work(torch.from_numpy(loads), *numbers).numpy()
    work = law.launch[:, None] + loads[:, PLAIN:SQUARES].T + crowded
    expected = law.scale_ms[:, None] * work
    assert computes_ms(network.law(2), loads) == pytest.approx(expected.T, rel=1e-6)
