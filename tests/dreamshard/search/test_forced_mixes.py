"""Constraints that leave tables few ways to be sharded, and few places."""

import random

import pytest

from dreamshard.constraints import Constraints
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.placement import (
    ON_EVERY_DEVICE,
    ON_ONE_HOST,
    SHARDING_TYPES,
    SPLIT_BY_COLUMNS,
    Placement,
    TableSharding,
    even_columns,
)
from dreamshard.placer import NoPlacementError
from dreamshard.search import RooflinePlacer
from dreamshard.shards import violation
from dreamshard.tasks import PlacementTask
from tests.helpers.tables import tables_of
from tests.helpers.trained import learnt_placer

H100 = PRESETS["h100"]

PRIOR = RooflinePlacer(H100)
BUDGET_MS = 10.0


def only(sharding_type, *names):
    return dict.fromkeys(names, (sharding_type,))


def task_of(constraints, num_devices=8, per_host=4, rows=(50_000, 10**6, 500), dim=(64, 32, 128), memory_bytes=2**34):
    tables = tables_of(rows, dim, 5.0)
    return PlacementTask(tables, num_devices, memory_bytes, devices_per_host=per_host, constraints=constraints)


ANYHOW = Constraints(sharding_types=SHARDING_TYPES)


@pytest.mark.parametrize(
    "task",
    [
        task_of(Constraints(sharding_types_of=only("table_row_wise", "t1"), pinned={"t1": (4, 5, 6, 7)})),
        task_of(Constraints(sharding_types_of=only("table_row_wise", "t1"), excluded_devices=(0,))),
        task_of(Constraints(sharding_types_of=only("grid_shard", "t0", "t2"), excluded={"t0": (5,)})),
        task_of(Constraints(sharding_types_of=only("grid_shard", "t2"), narrowest_columns_of={"t2": 128})),
        task_of(Constraints(sharding_types_of=only("grid_shard", "t0"), narrowest_columns_of={"t0": 20})),
        task_of(Constraints(sharding_types_of=only("row_wise", "t0")), rows=(10, 1000, 1000)),
        task_of(
            Constraints(
                sharding_types=("table_wise", "data_parallel"),
                sharding_types_of=only("row_wise", "t1"),
                apart=(frozenset({"t0", "t1"}),),
            )
        ),
        task_of(Constraints(sharding_types_of=only("table_row_wise", "t0", "t1"), apart=(frozenset({"t0", "t1"}),))),
        task_of(
            Constraints(
                sharding_types_of=only("table_row_wise", "t1"), apart=(frozenset({"t0", "t1"}),), pinned={"t0": (1,)}
            )
        ),
        task_of(Constraints(sharding_types=("row_wise",)), num_devices=1, per_host=1),
        task_of(
            Constraints(sharding_types_of=only("column_wise", "t1"), excluded_devices=(1,)), num_devices=2, per_host=2
        ),
        task_of(Constraints(sharding_types_of=only("column_wise", "t1"), pinned={"t1": (1,)})),
    ],
    ids=[
        "pinned to a host",
        "a device of another host excluded",
        "a grid on one host",
        "one range of a grid",
        "a grid of odd width",
        "fewer rows than devices",
        "apart from a row-wise table",
        "apart on hosts",
        "apart from a host",
        "one device",
        "by columns on one device",
        "by columns on a pin",
    ],
)
@pytest.mark.slow
@pytest.mark.parametrize("placer", [PRIOR, learnt_placer()], ids=["prior", "learnt"])
def test_the_only_way_to_shard_a_table_is_found(task, placer):
    assert violation(task, placer.place(task, BUDGET_MS)) == ""


def test_a_table_with_no_way_is_named_with_its_constraint_and_the_reason():
    no_host = Constraints(sharding_types_of=only("table_row_wise", "t1"), excluded={"t1": (0, 4)})
    with pytest.raises(NoPlacementError, match="'t1' may only be sharded table_row_wise, but it may use only devices"):
        PRIOR.place(task_of(no_host), BUDGET_MS)
    uneven = task_of(Constraints(sharding_types_of=only("grid_shard", "t0")), num_devices=6)
    with pytest.raises(
        NoPlacementError, match="'t0' may only be sharded grid_shard, but the 6 devices do not fill hosts"
    ):
        PRIOR.place(uneven, BUDGET_MS)
    cached = Constraints(sharding_types_of=only("data_parallel", "t0"), cached_share_of={"t0": 0.5})
    with pytest.raises(
        NoPlacementError, match="'t0' may only be sharded data_parallel, but it is to be in host memory"
    ):
        PRIOR.place(task_of(cached), BUDGET_MS)


def test_a_placement_of_the_spread_table_that_bars_all_others_is_refused():
    barred = Constraints(
        sharding_types=("table_wise",), sharding_types_of=only("row_wise", "t1"), apart=(frozenset({"t0", "t1"}),)
    )
    with pytest.raises(NoPlacementError, match="found no placement"):
        PRIOR.place(task_of(barred), BUDGET_MS)


def drawn_task(rng):
    per_host, hosts, count = rng.choice([2, 4]), rng.choice([1, 2]), rng.randint(2, 6)
    num_devices, names = per_host * hosts, [f"t{i}" for i in range(count)]

    def sometimes(share, value):
        return value if rng.random() < share else None

    constraints = {
        "sharding_types": rng.choice(
            [SHARDING_TYPES, ("table_wise", "column_wise"), ("table_wise", "row_wise", "data_parallel")]
        ),
        "sharding_types_of": sometimes(0.5, only(rng.choice(SHARDING_TYPES), rng.choice(names))),
        "pinned": sometimes(
            0.3, {rng.choice(names): tuple(rng.sample(range(num_devices), rng.randint(1, num_devices)))}
        ),
        "excluded": sometimes(0.2, {rng.choice(names): (rng.randrange(num_devices),)}),
        "excluded_devices": sometimes(0.2, (rng.randrange(num_devices),)),
        "apart": sometimes(0.3, (frozenset(rng.sample(names, 2)),)),
        "together": sometimes(0.2, (frozenset(rng.sample(names, 2)),)),
        "narrowest_columns_of": sometimes(0.2, {rng.choice(names): rng.choice([16, 20, 32, 64])}),
        "cached_share_of": sometimes(0.2, {rng.choice(names): 0.3}),
    }
    rows, dims = (rng.choices(of, k=count) for of in ([3, 500, 50_000, 10**6], [8, 32, 64, 128]))
    given = Constraints(**{name: value for name, value in constraints.items() if value is not None})
    return task_of(given, num_devices, per_host, rows, dims)


def drawn_placement(rng, task):
    per_host, shardings = task.devices_per_host, []
    for name, dim in zip(task.tables.names, task.tables.dim.tolist(), strict=True):
        way = rng.choice(task.constraints.sharding_types_for(name))
        columns = even_columns(dim, rng.randint(2, min(4, dim // 4))) if way in SPLIT_BY_COLUMNS else ()
        places = range(task.num_devices // per_host if way in ON_ONE_HOST else task.num_devices)
        where = () if way in ON_EVERY_DEVICE else tuple(rng.choice(places) for _ in columns or [0])
        share = None if way == "data_parallel" else task.constraints.cached_share_of.get(name)
        shardings.append(TableSharding(way, columns=columns, where=where, cached_share=share))
    return Placement(tuple(shardings), task.num_devices, per_host)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.slow
def test_what_random_placements_can_meet_the_search_meets_too(seed):
    rng, placed = random.Random(seed), 0
    for _ in range(25):
        try:
            task = drawn_task(rng)
        except ValueError:
            continue  # a contradiction, refused at once
        try:
            assert violation(task, PRIOR.place(task, BUDGET_MS)) == "", task.constraints
            placed += 1
        except NoPlacementError:
            found = (placement for placement in (drawn_placement(rng, task) for _ in range(400)))
            assert all(violation(task, placement) for placement in found), task.constraints
    assert placed > 5
