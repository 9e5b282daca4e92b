"""The compiled search: its sums, its limits, and its results without compilation."""

import json
import os
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch

from dreamshard.constraints import ANY_SHARDING, Constraints
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.search import RooflinePlacer, annealing
from dreamshard.search.options import ShardingOptions
from dreamshard.search.starting import greedy
from dreamshard.tasks import PlacementTask, violation
from tests.helpers.tables import pool_of
from tests.helpers.trained import learnt_placer

A100 = PRESETS["a100"]


def with_shared_links():
    placer = deepcopy(learnt_placer())
    placer.cost_network.exchanges.fitted_ms = torch.tensor([[0.1, 0.5, 0.2, 0.1, 0.4, 1.5]] * 2)
    return placer


PLACERS = {"network": learnt_placer, "roofline": lambda: RooflinePlacer(A100), "shared links": with_shared_links}
NAMES = pool_of(24).names
CONSTRAINED = Constraints(
    sharding_types=ANY_SHARDING.sharding_types,
    pinned={NAMES[0]: (1,), NAMES[1]: (2, 3)},
    apart=(frozenset(NAMES[4:8]),),
    together=(frozenset(NAMES[8:10]),),
)


@pytest.mark.parametrize("kind", PLACERS)
@pytest.mark.parametrize(
    ("constraints", "hot"),
    [(ANY_SHARDING, False), (CONSTRAINED, False), (ANY_SHARDING, True)],
    ids=["free", "constrained", "hot rows"],
)
@torch.no_grad()
def test_a_state_after_1000_changes_costs_the_same_as_rebuilt(kind, constraints, hot):
    share = torch.rand(24, 64, generator=torch.Generator().manual_seed(0)) ** 8 if hot else None
    tables = replace(pool_of(24), block_share=share)
    task = PlacementTask(tables, 8, 2**33, devices_per_host=4, constraints=constraints)
    costs = PLACERS[kind]().costs(task)
    every = ShardingOptions.of(task, costs)
    options = every.only(every.types)
    menu = options.menu
    start = greedy(menu, np.argsort(-menu.alone_ms))
    state, search = annealing.prepared(menu, start)
    for seed in range(4):
        generator, best = np.random.default_rng(seed), annealing.Found(start.option.copy(), start.place.copy(), 0.0)
        annealing._anneal(menu, state, search, best, generator, 1000, 1.0, np.array([1e3 * start.cost_ms, 0.0]))
        fresh = annealing.state_of(menu, state.option, state.place)
        stated_ms = fresh.totals[annealing._COST]
        annealing._compare_with(fresh, state.totals[annealing._LATEST], search.scale_ms)
        slowest_ms = annealing._slowest_ms(fresh, search, fresh.own_ms.max())
        alone = annealing.state_of(menu._replace(excess=0.0), state.option, state.place)
        cost_ms = alone.totals[annealing._COST] - alone.own_ms.max() + slowest_ms
        assert state.totals[annealing._COST] == pytest.approx(cost_ms, rel=1e-9)
        assert np.allclose(state.sums, fresh.sums)
        assert (state.used == fresh.used).all()
        placement = options.placement(annealing.found(state), joined=False)
        assert not violation(task, placement)
        assert stated_ms == pytest.approx(float(costs.predict(placement).overall_ms()), rel=2e-3)


_PLACE = """
import json
from dreamshard.constraints import ANY_SHARDING
from dreamshard.search import RooflinePlacer
from dreamshard.tasks import PlacementTask
from dreamshard.hardware.accelerator import hardware
from tests.helpers.tables import pool_of
task = PlacementTask(pool_of(12), 4, 2**33, constraints=ANY_SHARDING)
print(json.dumps([repr(each) for each in RooflinePlacer(hardware("a100")).place(task, 1.0).tables]))
"""


@pytest.mark.slow
def test_placements_are_the_same_without_compilation():
    answers = []
    for disabled in ("0", "1"):
        environment = {**os.environ, "NUMBA_DISABLE_JIT": disabled}
        done = subprocess.run([sys.executable, "-c", _PLACE], env=environment, capture_output=True, check=True)
        answers.append(json.loads(done.stdout))
    assert answers[0] == answers[1]
