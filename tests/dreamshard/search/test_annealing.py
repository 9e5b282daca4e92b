"""The compiled search: its sums, its limits, and its results without compilation."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from dreamshard.constraints import ANY_SHARDING, Constraints
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.search import RooflinePlacer, annealing
from dreamshard.search.options import ALL, Options
from dreamshard.search.starting import greedy
from dreamshard.shards import violation
from dreamshard.tasks import PlacementTask
from tests.helpers.tables import pool_of
from tests.helpers.trained import learnt_placer

A100 = PRESETS["a100"]

PLACERS = {"network": learnt_placer, "roofline": lambda: RooflinePlacer(A100)}
NAMES = pool_of(24).names
CONSTRAINED = Constraints(
    sharding_types=ANY_SHARDING.sharding_types,
    pinned={NAMES[0]: (1,), NAMES[1]: (2, 3)},
    apart=(frozenset(NAMES[4:8]),),
    together=(frozenset(NAMES[8:10]),),
)


@pytest.mark.parametrize("kind", PLACERS)
@pytest.mark.parametrize("constraints", [ANY_SHARDING, CONSTRAINED], ids=["free", "constrained"])
@torch.no_grad()
def test_a_state_after_1000_changes_costs_what_it_costs_from_scratch(kind, constraints):
    task = PlacementTask(pool_of(24), 8, 2**33, devices_per_host=4, constraints=constraints)
    costs = PLACERS[kind]().costs(task)
    options = Options.of(task, costs.devices_per_host, costs.loads, ALL, caching=False)
    menu, law = options.menu, costs.law()
    found = greedy(menu, law, np.argsort(-annealing.alone_ms(menu, law)))
    state = annealing.state_of(menu, law, found.option, found.place)
    order, row_ms = np.arange(len(menu.allowed)), np.zeros(len(menu.loads))
    for seed in range(4):
        draws = np.random.default_rng(seed).random((1000, 8))
        best = found.option.copy(), found.place.copy()
        annealing._anneal(menu, law, state, *best, 0.0, draws, 0, 1000, 1.0, 1e3, 1e3, 0.5, order, order, row_ms)
        fresh = annealing.state_of(menu, law, state.option, state.place)
        assert annealing.overall_ms(law, state) == pytest.approx(annealing.overall_ms(law, fresh), rel=1e-9)
        assert np.allclose(state.sums, fresh.sums)
        assert (state.used == fresh.used).all()
        placement = options.placement(annealing.Found(state.option, state.place, 0.0), joined=False)
        assert not violation(task, placement)
        predicted = float(costs.predict(task, placement).overall_ms())
        assert annealing.overall_ms(law, state) == pytest.approx(predicted, rel=2e-3)


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
