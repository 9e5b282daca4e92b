"""Placing by every sharding type, and within constraints that leave tables few types and few places."""

import random
from dataclasses import replace

import pytest
import torch

from dreamshard import read_tables
from dreamshard.constraints import ANY_SHARDING, UNCONSTRAINED, Constraints
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.moving import Current, MovePrice, weigh
from dreamshard.planning import legal_placement, make_plan
from dreamshard.search import RooflinePlacer
from dreamshard.search.packing import baselines
from dreamshard.tables import (
    ON_EVERY_DEVICE,
    ON_ONE_HOST,
    SHARDING_TYPES,
    SPLIT_BY_COLUMNS,
    Placement,
    TableSharding,
    even_columns,
)
from dreamshard.tasks import NoPlacementError, PlacementTask, Shards, violation
from tests.helpers.tables import ROW_BYTES, tables_of, tables_of_dims
from tests.helpers.trained import learnt_placer

PRIOR = RooflinePlacer(PRESETS["a100"])
BUDGET_MS = 10.0
GB = 10**9
COLUMNS = ("table_wise", "column_wise")


def cost_ms(task, placement, placer=PRIOR):
    return float(placer.predict(task, placement).overall_ms())


def legal(task, placer=PRIOR, budget_ms=None):
    """The placement, which respects everything."""
    placement = placer.place(task, budget_ms)
    assert violation(task, placement) == "", placer.name
    return placement


def test_devices_of_unequal_memory_are_filled_by_their_room():
    tables = tables_of([100, 100, 50, 50, 10], dim=4)  # 16 bytes a row
    constraints = Constraints(memory_bytes_of={0: 3_300, 1: 1_000}, reserve_bytes=100)
    task = PlacementTask(tables, 2, 10**6, constraints=replace(constraints, memory_bytes_of={0: 3_300, 1: 1_900}))
    for placer in (learnt_placer(), PRIOR, *baselines().values()):
        legal(task, placer)
    with pytest.raises(NoPlacementError) as caught:
        PRIOR.place(PlacementTask(tables, 2, 10**6, constraints=constraints))
    assert caught.value.is_proved


def test_a_table_is_split_by_columns_no_finer_than_allowed():
    tables = tables_of([10**6, 100, 100], dim=64, pooling=[50.0, 1.0, 1.0])
    constraints = Constraints(sharding_types_of={"t1": ("column_wise",)}, narrowest_columns_of={"t0": 32, "t1": 16})
    placement = legal(PlacementTask(tables, 8, 2**40, constraints=constraints))
    widths = [[end - start for start, end in table.ranges(64)] for table in placement.tables]
    assert min(widths[0]) >= 32
    assert len(widths[1]) > 1


@pytest.mark.parametrize("placer", [PRIOR, learnt_placer()], ids=["prior", "learnt"])
def test_a_table_larger_than_every_device_is_split(placer):
    task = PlacementTask(tables_of([1000, 100, 100], dim=[32, 8, 8]), 4, 70_000)
    assert len(legal(task, placer).tables[0].columns) >= 2
    huge = PlacementTask(tables_of([5 * 10**9], dim=16, pooling=10.0), 64, 70 * GB, constraints=ANY_SHARDING)
    legal(huge, placer)


@pytest.mark.parametrize("types", [COLUMNS, SHARDING_TYPES])
def test_tables_that_no_memory_holds_are_cached(types):
    constraints = Constraints(sharding_types=types, caching=True)
    task = PlacementTask(read_tables("mlperf-dlrm-dcnv2"), 8, 8 * GB, constraints=constraints)
    placement = legal(task, RooflinePlacer(PRESETS["h100"]))
    cached = [t for t, sharding in enumerate(placement.tables) if sharding.cached_share is not None]
    assert 0 < len(cached) < len(placement.tables)
    assert int(task.tables.rows[cached].min()) > 100_000  # small tables free nothing


def test_caches_of_unknown_cost_refuse_no_columns_that_fit():
    tables = tables_of([200, 200, 700, 300], dim=[20, 28, 20, 28])  # 8000 rows of four columns
    task = PlacementTask(tables, 2, 4040 * ROW_BYTES, constraints=Constraints(caching=True))
    unlinked = RooflinePlacer(replace(PRESETS["a100"], host_bytes_per_s=None))
    for placer in (learnt_placer(), unlinked):
        assert legal(task, placer) == placer.place(replace(task, constraints=UNCONSTRAINED))
        with pytest.raises(NoPlacementError):
            placer.place(replace(task, memory_bytes=3990 * ROW_BYTES))


def test_a_trained_network_spreads_tables_too():
    task = PlacementTask(read_tables("mlperf-dlrm-dcnv2"), 8, 80 * GB, constraints=ANY_SHARDING)
    placer = learnt_placer()
    plain = placer.place(replace(task, constraints=UNCONSTRAINED))
    assert cost_ms(task, legal(task, placer), placer) <= cost_ms(task, plain, placer) * 1.01


def test_a_hot_table_is_spread_with_copies_of_small_ones():
    pool, prior = read_tables("nvidia-synthetic-small"), RooflinePlacer(PRESETS["h200"])
    drawn = pool.select(torch.randperm(len(pool), generator=torch.Generator().manual_seed(101))[:40])
    task = PlacementTask(drawn, 8, 120 * GB, optimizer="rowwise_adagrad", constraints=ANY_SHARDING, batch_size=65_536)
    placement, plain = prior.place(task), prior.place(replace(task, constraints=UNCONSTRAINED))
    assert {"row_wise", "data_parallel"} <= placement.sharding_types
    assert cost_ms(task, placement, prior) < 0.9 * cost_ms(task, plain, prior)


@pytest.mark.parametrize(("tables", "devices"), [(26, 8), (50, 16)])
def test_the_last_of_equal_tables_are_split_over_all_devices(tables, devices):
    task = PlacementTask(tables_of([100_000] * tables, 128), devices, 2**36)
    shards = Shards.of(task, PRIOR.place(task))
    width = shards.per_device(torch.diff(shards.columns)[:, 0])
    assert width.tolist() == [128 * tables // devices] * devices


@pytest.mark.parametrize("constraints", [Constraints(), ANY_SHARDING])
def test_wide_tables_are_split_into_shards_that_kernels_take(constraints):
    task = PlacementTask(tables_of_dims([2048, 64, 64], rows=1000), 2, 2**30, constraints=constraints)
    shards = Shards.of(task, split := PRIOR.place(task, 1.0))
    assert int(shards.num_columns.max()) <= 1024
    current = Current.of(make_plan(task, Placement.whole([0, 0, 1], 2), "old"), task)
    weighed = weigh(task, current, split, PRIOR, MovePrice(steps_until_next=1, bytes_per_s=1))
    assert "1024 columns" in weighed.why_not_kept
    assert weighed.chosen.moved_bytes == 0, "its shards stay on its device"
    assert not violation(task, weighed.chosen.placement)
    with pytest.raises(NoPlacementError):
        PRIOR.place(replace(task, constraints=Constraints(sharding_types=("table_wise",))))
    with pytest.raises(NoPlacementError, match="1024 columns"):
        legal_placement(task, baselines()["size_greedy"])


def only(sharding_type, *names):
    return dict.fromkeys(names, (sharding_type,))


def task_of(constraints, num_devices=8, per_host=4, rows=(50_000, 10**6, 500), dim=(64, 32, 128), memory_bytes=2**34):
    tables = tables_of(rows, dim, 5.0)
    return PlacementTask(tables, num_devices, memory_bytes, devices_per_host=per_host, constraints=constraints)


ONLY_TYPES = {
    "pinned to a host": Constraints(sharding_types_of=only("table_row_wise", "t1"), pinned={"t1": (4, 5, 6, 7)}),
    "a device of another host excluded": Constraints(
        sharding_types_of=only("table_row_wise", "t1"), memory_bytes_of={0: 0}
    ),
    "a grid on one host": Constraints(
        sharding_types_of=only("grid_shard", "t0", "t2"), pinned={"t0": (0, 1, 2, 3, 4, 6, 7)}
    ),
    "a grid of odd width": Constraints(sharding_types_of=only("grid_shard", "t0"), narrowest_columns_of={"t0": 20}),
    "apart from a row-wise table": Constraints(
        sharding_types=("table_wise", "data_parallel"),
        sharding_types_of=only("row_wise", "t1"),
        apart=(frozenset({"t0", "t1"}),),
    ),
    "apart from a host": Constraints(
        sharding_types_of=only("table_row_wise", "t1"), apart=(frozenset({"t0", "t1"}),), pinned={"t0": (1,)}
    ),
}
ON_ONE = Constraints(sharding_types_of=only("column_wise", "t1"), memory_bytes_of={1: 0})
ONLY_TYPES |= {
    kind: Constraints(sharding_types=SHARDING_TYPES, sharding_types_of=only(kind, "t1")) for kind in SHARDING_TYPES
}
ONLY_TYPE_TASKS = {name: task_of(constraints) for name, constraints in ONLY_TYPES.items()} | {
    "fewer rows than devices": task_of(Constraints(sharding_types_of=only("row_wise", "t0")), rows=(10, 1000, 1000)),
    "by columns on one device": task_of(ON_ONE, num_devices=2, per_host=2),
}


@pytest.mark.parametrize("case", ONLY_TYPE_TASKS)
@pytest.mark.slow
@pytest.mark.parametrize("placer", [PRIOR, learnt_placer()], ids=["prior", "learnt"])
def test_the_only_sharding_type_of_a_table_is_used(case, placer):
    legal(ONLY_TYPE_TASKS[case], placer, BUDGET_MS)


@pytest.mark.parametrize(
    ("constraints", "num_devices"),
    [
        ({"sharding_types_of": only("table_row_wise", "t1"), "pinned": {"t1": (1, 2, 3, 5, 6, 7)}}, 8),
        ({"sharding_types_of": only("row_wise", "t1"), "pinned": {"t1": (1,)}}, 8),
        ({"sharding_types_of": only("grid_shard", "t0")}, 6),
        ({"sharding_types_of": only("data_parallel", "t0"), "cached_share_of": {"t0": 0.5}}, 8),
        ({"sharding_types_of": only("column_wise", "t0"), "narrowest_columns_of": {"t0": 2048}}, 8),
    ],
)
def test_a_table_without_a_sharding_type_is_named(constraints, num_devices):
    task = task_of(Constraints(**constraints), num_devices=num_devices)
    with pytest.raises(NoPlacementError):
        PRIOR.place(task, BUDGET_MS)


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
        "excluded": sometimes(0.2, (rng.choice(names), rng.randrange(num_devices))),
        "memory_bytes_of": sometimes(0.2, {rng.randrange(num_devices): 0}),
        "apart": sometimes(0.3, (frozenset(rng.sample(names, 2)),)),
        "together": sometimes(0.2, (frozenset(rng.sample(names, 2)),)),
        "narrowest_columns_of": sometimes(0.2, {rng.choice(names): rng.choice([16, 20, 32, 64])}),
        "cached_share_of": sometimes(0.2, {rng.choice(names): 0.3}),
    }
    rows, dims = (rng.choices(of, k=count) for of in ([3, 500, 50_000, 10**6], [8, 32, 64, 128]))
    given = {name: value for name, value in constraints.items() if value is not None}
    if excluded := given.pop("excluded", None):
        name, device = excluded
        allowed = given.setdefault("pinned", {}).get(name, range(num_devices))
        given["pinned"][name] = tuple(d for d in allowed if d != device)
    return task_of(Constraints(**given), num_devices, per_host, rows, dims)


def drawn_placement(rng, task):
    per_host, shardings = task.devices_per_host, []
    for name, dim in zip(task.tables.names, task.tables.dim.tolist(), strict=True):
        sharding_type = rng.choice(task.constraints.sharding_types_for(name))
        columns = even_columns(dim, rng.randint(2, min(4, dim // 4))) if sharding_type in SPLIT_BY_COLUMNS else ()
        places = range(task.num_devices // per_host if sharding_type in ON_ONE_HOST else task.num_devices)
        where = () if sharding_type in ON_EVERY_DEVICE else tuple(rng.choice(places) for _ in columns or [0])
        share = None if sharding_type == "data_parallel" else task.constraints.cached_share_of.get(name)
        shardings.append(TableSharding(sharding_type, columns=columns, where=where, cached_share=share))
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
            candidates = (placement for placement in (drawn_placement(rng, task) for _ in range(400)))
            assert all(violation(task, placement) for placement in candidates), task.constraints
    assert placed > 5


def test_hot_tables_to_be_kept_apart_stay_whole_though_rows_would_cost_less():
    tables = tables_of([1000, 1000], 64, [200.0, 200.0])
    apart = Constraints(sharding_types=("table_wise", "row_wise"), apart=(frozenset(tables.names),))
    task = PlacementTask(tables, 8, GB, devices_per_host=8, constraints=apart)
    assert legal(task).sharding_types == {"table_wise"}
