"""Placing by every way to shard."""

from dataclasses import replace
from importlib import resources

import pytest
import torch

from dreamshard.constraints import ANY_SHARDING, UNCONSTRAINED, Constraints
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.placement import SHARDING_TYPES
from dreamshard.placer import NoPlacementError
from dreamshard.search import RooflinePlacer
from dreamshard.shards import violation
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.simulated import SimulatedTestbed
from dreamshard.workloads import read_tables
from tests.helpers.tables import pool_of, tables_of
from tests.helpers.trained import learnt_placer

A100 = PRESETS["a100"]
H100 = PRESETS["h100"]
H200 = PRESETS["h200"]

PRIOR = RooflinePlacer(A100)
GB = 10**9


def mlperf():
    return read_tables(str(resources.files("dreamshard.workloads") / "data" / "mlperf-dlrm-dcnv2.csv"))


def cost_ms(task, placement, placer=PRIOR):
    return float(placer.predict(task, placement).overall_ms())


def test_a_table_larger_than_any_device_is_spread():
    tables = tables_of([5 * 10**9], dim=16, pooling=10.0, batch_size=65_536)
    task = PlacementTask(tables, 64, 70 * GB, constraints=ANY_SHARDING)
    placement = PRIOR.place(task)
    assert violation(task, placement) == ""


@pytest.mark.parametrize("types", [("table_wise", "column_wise"), SHARDING_TYPES])
def test_tables_that_no_memory_holds_are_cached_and_no_more_than_needed(types):
    task = PlacementTask(mlperf(), 8, 8 * GB, constraints=Constraints(sharding_types=types, caching=True))
    placement = RooflinePlacer(H100).place(task)
    assert violation(task, placement) == ""
    cached = [t for t, sharding in enumerate(placement.tables) if sharding.cached_share is not None]
    assert 0 < len(cached) < len(placement.tables)
    assert int(task.tables.rows[cached].min()) > 100_000  # small tables free nothing


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("num_devices", "per_host"), [(4, None), (8, 4)])
def test_more_ways_to_shard_never_cost_more_and_sometimes_less(num_devices, per_host, seed):
    columns = PlacementTask(pool_of(24, seed), num_devices, 2**40, devices_per_host=per_host)
    anyhow = replace(columns, constraints=ANY_SHARDING)
    plain = PRIOR.place(columns)
    placement = PRIOR.place(anyhow)
    assert violation(anyhow, placement) == ""
    assert cost_ms(anyhow, placement) <= cost_ms(anyhow, plain) * 1.05  # which had more time


def test_it_predicts_what_the_simulated_testbed_measures():
    task = PlacementTask(mlperf(), 8, 80 * GB, constraints=ANY_SHARDING, batch_size=65_536)
    placement = PRIOR.place(task)
    setup = TestbedSetup(num_devices=8, batch_size=65_536, lookups=lambda name: pytest.fail(name))
    measured = SimulatedTestbed(setup, A100, noise=0.0).measure(task, placement)
    assert cost_ms(task, placement) == pytest.approx(measured.overall_ms, rel=1e-5)


@pytest.mark.parametrize("sharding_type", SHARDING_TYPES)
def test_tables_that_must_be_sharded_in_one_way_are(sharding_type):
    tables = replace(pool_of(6), dim=torch.full((6,), 64), rows=torch.full((6,), 10**5))
    constraints = replace(ANY_SHARDING, sharding_types_of={tables.names[2]: (sharding_type,)})
    task = PlacementTask(tables, 8, 2**40, devices_per_host=4, constraints=constraints)
    placement = PRIOR.place(task)
    assert placement.tables[2].sharding_type == sharding_type
    assert violation(task, placement) == ""


def test_constraints_on_places_hold_beside_spread_tables():
    tables = mlperf()
    small = [name for name, rows in zip(tables.names, tables.rows.tolist(), strict=True) if rows < 10**6]
    constraints = replace(
        ANY_SHARDING,
        pinned={small[0]: (3,)},
        together=(frozenset(small[1:4]),),
        apart=(frozenset(small[4:7]),),
        memory_bytes_of={0: 40 * GB},
        reserve_bytes=GB,
    )
    task = PlacementTask(tables, 8, 80 * GB, constraints=constraints)
    assert violation(task, PRIOR.place(task)) == ""


def test_what_fits_nowhere_is_refused():
    tables = tables_of([10**6] * 3, dim=64)  # 256 MB each, 768 MB in all
    only_whole = Constraints(sharding_types=("table_wise",))
    task = PlacementTask(tables, 2, 400 * 10**6, constraints=only_whole)
    with pytest.raises(NoPlacementError, match="found no placement"):
        PRIOR.place(task)
    assert (
        violation(replace(task, constraints=ANY_SHARDING), PRIOR.place(replace(task, constraints=ANY_SHARDING))) == ""
    )


def test_a_trained_network_spreads_tables_too():
    task = PlacementTask(mlperf(), 8, 80 * GB, constraints=ANY_SHARDING)
    placer = learnt_placer()
    placement = placer.place(task)
    assert violation(task, placement) == ""
    plain = placer.place(replace(task, constraints=UNCONSTRAINED))
    assert cost_ms(task, placement, placer) <= cost_ms(task, plain, placer) * 1.01
    spread = PlacementTask(
        tables_of([10**6], dim=16), 4, 20 * 10**6, constraints=Constraints(sharding_types=("row_wise",))
    )
    assert placer.place(spread).tables[0].sharding_type == "row_wise"


def test_a_hot_table_is_spread_where_that_pays_only_together_with_copies_of_small_ones():
    pool = read_tables(str(resources.files("dreamshard.workloads") / "data" / "nvidia-synthetic-small.csv"))
    drawn = pool.select(torch.randperm(len(pool), generator=torch.Generator().manual_seed(101))[:40])
    task = PlacementTask(drawn, 8, 120 * GB, optimizer="rowwise_adagrad", constraints=ANY_SHARDING, batch_size=65_536)
    prior = RooflinePlacer(H200)
    found = prior.place(task)
    assert {"row_wise", "data_parallel"} <= found.sharding_types
    plain = prior.place(replace(task, constraints=UNCONSTRAINED))
    assert cost_ms(task, found, prior) < 0.9 * cost_ms(task, plain, prior)
