from dataclasses import replace

import pytest
import torch

from dreamshard.constraints import Constraints
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.moving import InUse, MovePrice, moved_bytes, rename_devices, steps, weigh
from dreamshard.placement import SHARDING_TYPES, Placement, TableSharding
from dreamshard.plan import make_plan
from dreamshard.search import RooflinePlacer
from dreamshard.shards import violation
from dreamshard.tasks import PlacementTask
from tests.helpers.tables import pool_of, tables_of, with_table
from tests.helpers.trained import learnt_placer

A100 = RooflinePlacer(PRESETS["a100"])
DEAR = MovePrice(steps_until_next=1, bytes_per_s=1)
CHEAP = MovePrice(steps_until_next=1e12, bytes_per_s=1e12)


def placed(task, devices):
    return Placement.whole(devices, task.num_devices, task.devices_per_host)


def used(old, devices, task=None) -> InUse:
    """The plan of an old task, as the task finds it."""
    return InUse.of(make_plan(old, placed(old, devices), "old"), task or old)


def two_devices(num_tables=4, **more):
    """Alike tables of 100,000 rows, 24.4 MiB each."""
    return PlacementTask(tables_of([100_000] * num_tables, 64, 20.0), 2, 2**40, **more)


def test_a_price_that_no_gain_pays_keeps_the_plan():
    task = two_devices()
    dear, cheap = (
        weigh(task, used(task, [0, 0, 0, 1]), placed(task, [0, 0, 1, 1]), A100, price) for price in (DEAR, CHEAP)
    )
    assert dear.chosen == dear.kept
    assert dear.chosen.moved_bytes == 0
    assert dear.moved_all.overall_ms < dear.kept.overall_ms
    assert cheap.chosen.overall_ms == cheap.moved_all.overall_ms
    assert [point.moved_bytes for point in cheap.curve] == [0, 100_000 * 64 * 4]
    assert cheap.curve[0].overall_ms > cheap.curve[1].overall_ms


def test_an_equally_good_placement_that_moves_less_is_found():
    task = two_devices(6)
    current = used(task, [0, 0, 0, 0, 1, 1])  # one table has to move; the new placement swaps two pairs as well
    target = placed(task, [0, 1, 1, 1, 0, 0])
    price = MovePrice(steps_until_next=100_000, bytes_per_s=1e9)
    weighed = weigh(task, current, target, A100, price)
    assert weighed.chosen.moved_bytes == 100_000 * 64 * 4
    assert weighed.chosen.overall_ms == pytest.approx(weighed.moved_all.overall_ms)


def test_breaking_even_takes_the_steps_that_pay_for_the_move():
    task = two_devices()
    current, target = used(task, [0, 0, 0, 1]), placed(task, [0, 0, 1, 1])
    free = weigh(task, current, target, A100, CHEAP)
    gain_ms = free.kept.overall_ms - free.chosen.overall_ms
    moved_ms = 1e3 * free.chosen.moved_bytes / 1e9
    for factor, stays in ((0.99, True), (1.01, False)):
        price = MovePrice(steps_until_next=factor * moved_ms / gain_ms, bytes_per_s=1e9)
        assert (weigh(task, current, target, A100, price).chosen.moved_bytes == 0) == stays


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("count", [1e2, 1e4, 1e6])
def test_the_choice_is_never_worse_than_both_ends_and_fits(seed, count):
    tables = pool_of(14, seed)
    generator = torch.Generator().manual_seed(seed)
    loose = PlacementTask(tables, 4, 2**40)
    first, second = (torch.randint(4, (14,), generator=generator).tolist() for _ in range(2))
    room = max(
        max(sum(loose.table_bytes[torch.tensor(each) == d]).item() for d in set(each)) for each in (first, second)
    )
    task = replace(loose, memory_bytes=int(room), constraints=Constraints(apart=()))
    current = used(task, first)
    target = rename_devices(task, placed(task, second), current.shards)
    price = MovePrice(steps_until_next=count, bytes_per_s=1e9)
    weighed = weigh(task, current, target, A100, price)
    totals = [price.total_ms(point.overall_ms, point.moved_bytes) for point in (weighed.kept, weighed.moved_all)]
    assert price.total_ms(weighed.chosen.overall_ms, weighed.chosen.moved_bytes) <= min(totals)
    for point in (*weighed.curve, weighed.chosen):
        assert violation(task, point.placement) == ""
        assert point.moved_bytes == moved_bytes(steps(task, current.shards, point.placement))
        assert point.overall_ms == float(A100.predict(task, point.placement).overall_ms())


def test_a_plan_that_breaks_a_new_constraint_cannot_be_kept():
    task = two_devices(constraints=Constraints(pinned={"t0": (1,)}))
    weighed = weigh(task, used(two_devices(), [0, 0, 0, 1]), placed(task, [1, 0, 0, 1]), A100, DEAR)
    assert weighed.kept is None
    assert weighed.why_not_kept == "table 't0' has a shard on device 0, which it may not use"
    assert weighed.chosen.moved_bytes == 100_000 * 64 * 4


def test_new_tables_cost_no_moves_wherever_they_go():
    task = two_devices()
    current = used(two_devices(3), [0, 0, 1], task)
    weighed = weigh(task, current, placed(task, [0, 0, 1, 1]), A100, DEAR)
    assert weighed.chosen.moved_bytes == 0
    assert weighed.chosen.placement.tables[3].where == (1,)


def test_a_plan_for_other_devices_moves_all_of_the_way():
    task = replace(two_devices(), num_devices=3)
    current = used(two_devices(), [0, 0, 1, 1], task)
    weighed = weigh(task, current, placed(task, [0, 0, 1, 2]), A100, DEAR)
    assert weighed.kept is None
    assert weighed.why_not_kept == "it is for 2 devices"
    assert weighed.chosen == weighed.moved_all


def test_ways_to_shard_change_on_the_way_too():
    anything = Constraints(sharding_types=SHARDING_TYPES)
    tables = tables_of([2_000_000, 2000, 2000, 2000], [64, 64, 64, 64], [40.0, 5.0, 5.0, 5.0])
    task = PlacementTask(tables, 4, 2**40, constraints=anything)
    rows = TableSharding("row_wise")
    target = with_table(placed(task, [0, 1, 2, 3]), 0, rows)
    current = used(task, [0, 1, 1, 1])
    assert weigh(task, current, target, A100, DEAR).chosen.moved_bytes == 0
    weighed = weigh(task, current, target, A100, CHEAP)
    assert weighed.chosen.placement.tables[0] == rows
    assert weighed.chosen.overall_ms < weighed.kept.overall_ms


def test_tables_on_hosts_are_kept_on_hosts_of_the_same_size_only():
    anything = Constraints(sharding_types=SHARDING_TYPES)
    tables = tables_of([2_000_000, 2000], 64, [40.0, 5.0])
    on_host = TableSharding("table_row_wise", where=(1,))
    whole = TableSharding("table_wise", where=(0,))
    old = PlacementTask(tables, 4, 2**40, devices_per_host=2, constraints=anything)
    plan = make_plan(old, Placement((on_host, whole), 4, 2), "old")
    unsaid = replace(old, devices_per_host=None)  # the hardware has four per host
    wider = Placement((replace(on_host, where=(0,)), whole), 4, 4)
    weighed = weigh(unsaid, InUse.of(plan, unsaid), wider, A100, DEAR)
    assert weighed.why_not_kept == "it spreads rows over hosts of 2 devices"
    assert weighed.chosen == weighed.moved_all
    same = Placement((replace(on_host, where=(0,)), whole), 4, 2)
    assert weigh(old, InUse.of(plan, old), same, A100, DEAR).chosen.moved_bytes == 0


def test_a_plan_with_unknown_costs_is_left_with_the_reason():
    task = two_devices(2, constraints=Constraints(caching=True))
    cached = TableSharding("table_wise", where=(0,), cached_share=0.5)
    held = with_table(placed(task, [0, 1]), 0, cached)
    current = InUse.of(make_plan(task, held, "old"), task)
    weighed = weigh(task, current, placed(task, [0, 1]), learnt_placer(), DEAR)
    assert weighed.kept is None
    assert "its cost is not known" in weighed.why_not_kept
    assert weighed.chosen == weighed.moved_all
