from dataclasses import replace

import pytest
import torch

from dreamshard.constraints import ANY_SHARDING, Constraints
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.moving import Current, MovePrice, Step, moved_bytes, rename_devices, steps, weigh
from dreamshard.planning import make_plan
from dreamshard.search import RooflinePlacer
from dreamshard.tables import SHARDING_TYPES, Placement, TableSharding
from dreamshard.tasks import PlacementTask, Shards, violation
from tests.helpers.tables import ROW_BYTES, pool_of, shard_sums, tables_of, task_of, with_table
from tests.helpers.trained import learnt_placer

A100 = RooflinePlacer(PRESETS["a100"])
DEAR = MovePrice(steps_until_next=1, bytes_per_s=1)
CHEAP = MovePrice(steps_until_next=1e12, bytes_per_s=1e12)


def placed(task, devices, per_host=None):
    return Placement.whole(devices, task.num_devices).on_hosts_of(per_host)


def between(task, before, after):
    moves = steps(task, Shards.of(task, before), after)
    return [step for step in moves if step.source is not None]


def test_moves_name_what_changed_largest_first():
    task = task_of([1, 3, 2], num_devices=2, room_rows=10)
    moved = between(task, placed(task, [0, 0, 1]), placed(task, [0, 1, 0]))
    assert moved == [Step("t1", (0, 3), (0, 4), 0, 1, 3 * ROW_BYTES), Step("t2", (0, 2), (0, 4), 1, 0, 2 * ROW_BYTES)]


@pytest.mark.parametrize(("optimizer", "num_bytes"), [("sgd", 80), ("rowwise_adagrad", 5 * (4 * 4 + 4))])
def test_a_split_table_moves_only_the_columns_that_change_device(optimizer, num_bytes):
    task = PlacementTask(tables_of([5], dim=8), 2, 2**20, optimizer=optimizer)
    split = Placement((TableSharding("column_wise", ((0, 4), (4, 8)), (0, 1)),), 2, 2)
    assert between(task, placed(task, [0]), split) == [Step("t0", (0, 5), (4, 8), 0, 1, num_bytes)]


def test_rows_go_to_each_device_and_copies_to_every_device():
    task = task_of([6], num_devices=3, room_rows=10)
    rows = Placement((TableSharding("row_wise"),), 3, 3)
    copies = Placement((TableSharding("data_parallel"),), 3, 3)
    whole = placed(task, [1])
    assert [(move.rows, move.target) for move in between(task, whole, rows)] == [((0, 2), 0), ((4, 6), 2)]
    assert [(move.rows, move.target) for move in between(task, whole, copies)] == [((0, 6), 0), ((0, 6), 2)]
    assert between(task, copies, whole) == []
    assert between(task, copies, rows) == []
    assert sum(move.memory_bytes for move in between(task, rows, copies)) == 3 * 4 * ROW_BYTES


def test_hosts_stay_together_if_a_table_is_spread_over_one():
    task = replace(task_of([9, 8, 7, 6], num_devices=4, room_rows=20), devices_per_host=2)
    before = Shards.of(task, placed(task, [0, 1, 2, 3], per_host=2))
    swapped_hosts = placed(task, [3, 2, 1, 0], per_host=2)
    assert moved_bytes(steps(task, before, rename_devices(task, swapped_hosts, before))) == 0
    mixed = placed(task, [0, 2, 1, 3], per_host=2)  # no table is on a host, so tables of two hosts may change places
    assert moved_bytes(steps(task, before, rename_devices(task, mixed, before))) == 0
    task = replace(task, constraints=ANY_SHARDING)
    on_host = TableSharding("table_row_wise", where=(0,))
    before = Shards.of(task, with_table(placed(task, [0, 1, 2, 3], per_host=2), 0, on_host))
    mixed = with_table(mixed, 0, on_host)  # t1 and t3 share a host now, as t2 and t0 do
    assert moved_bytes(steps(task, before, rename_devices(task, mixed, before))) == (8 + 7) * ROW_BYTES


@pytest.mark.parametrize(
    ("constraints", "devices"),
    [
        (Constraints(), [0, 1, 2]),
        (Constraints(pinned={"t0": (1,)}), [1, 0, 2]),  # devices 0 and 2 are alike, so the others keep what they can
        (Constraints(memory_bytes_of={1: 5 * ROW_BYTES}), [1, 0, 2]),
        (Constraints(pinned={"t0": (1, 2)}), [2, 1, 0]),
    ],
)
def test_only_devices_alike_by_the_constraints_change_names(constraints, devices):
    task = replace(task_of([5, 4, 1], num_devices=3, room_rows=20), constraints=constraints)
    before = Shards.of(task, placed(task, [0, 1, 2]))
    after = rename_devices(task, placed(task, [1, 2, 0]), before)
    assert after.device.tolist() == devices


def test_new_gone_and_resized_tables_are_told_from_the_rest():
    old = PlacementTask(tables_of([5, 4, 3], names=["same", "gone", "wider"]), 2, 2**20)
    plan = make_plan(old, placed(old, [0, 1, 1]), "old")
    today = tables_of([5, 3, 2], [4, 8, 4], names=["same", "wider", "new"])
    task = PlacementTask(today, 2, 2**20)
    current = Current.of(plan, task)
    assert (current.new, current.changed, current.removed) == (("new",), ("wider",), ("gone",))
    assert (current.task.tables.names, current.placement.tables[0].where) == (("same",), (0,))
    first, *loaded = steps(task, current.shards, placed(task, [1, 1, 0]))
    assert first == Step("same", (0, 5), (0, 4), 0, 1, 5 * ROW_BYTES)
    assert [(step.table, step.source, step.target) for step in loaded] == [("wider", None, 1), ("new", None, 0)]
    for others in (tables_of([5], prefix="other"), tables_of([5], dim=8, names=["same"])):
        with pytest.raises(ValueError):
            Current.of(plan, PlacementTask(others, 2, 2**20))


def test_other_names_that_cost_more_are_not_taken():
    tables = tables_of([5, 500, 500, 500], dim=64, pooling=[100.0, 5.0, 20.0, 40.0])  # blocks of 2, 2, 1 and 0 rows
    task = PlacementTask(tables, 4, 2**30, constraints=ANY_SHARDING)
    rows = TableSharding("row_wise")
    target = with_table(placed(task, [0, 3, 0, 1]), 0, rows)
    current = Current.of(make_plan(task, with_table(placed(task, [0, 0, 1, 3]), 0, rows), "old"), task)
    weighed = weigh(task, current, target, A100, CHEAP)
    assert weighed.moved_all.overall_ms <= float(A100.predict(task, target).overall_ms())


def used(old, devices, task=None) -> Current:
    """The plan of an old task, as the task finds it."""
    return Current.of(make_plan(old, placed(old, devices), "old"), task or old)


def two_devices(num_tables=4, **more):
    """Alike tables of 100,000 rows, 24.4 MiB each."""
    return PlacementTask(tables_of([100_000] * num_tables, 64, 20.0), 2, 2**40, **more)


def test_an_equally_good_placement_that_moves_less_is_found():
    task = two_devices(6)
    current = used(task, [0, 0, 0, 0, 1, 1])  # one table has to move; the new placement swaps two pairs as well
    target = placed(task, [0, 1, 1, 1, 0, 0])
    weighed = weigh(task, current, target, A100, MovePrice(steps_until_next=100_000, bytes_per_s=1e9))
    assert weighed.chosen.moved_bytes == 100_000 * 64 * 4
    assert weighed.chosen.overall_ms == pytest.approx(weighed.moved_all.overall_ms)


def test_breaking_even_takes_the_steps_that_pay_for_the_move():
    task = two_devices()
    current, target = used(task, [0, 0, 0, 1]), placed(task, [0, 0, 1, 1])
    free = weigh(task, current, target, A100, CHEAP)
    assert free.chosen.overall_ms == free.moved_all.overall_ms
    assert [point.moved_bytes for point in free.curve] == [0, 100_000 * 64 * 4]
    gain_ms = free.kept.overall_ms - free.chosen.overall_ms
    moved_ms = 1e3 * free.chosen.moved_bytes / 1e9
    for factor, stays in ((0.99, True), (1.01, False)):
        price = MovePrice(steps_until_next=factor * moved_ms / gain_ms, bytes_per_s=1e9)
        weighed = weigh(task, current, target, A100, price)
        assert (weighed.chosen.moved_bytes == 0) == (weighed.chosen == weighed.kept) == stays


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "count"), [(0, 1e2), (1, 1e4), (2, 1e6)])
def test_the_choice_is_never_worse_than_both_ends_and_fits(seed, count):
    loose = PlacementTask(pool_of(14, seed), 4, 2**40)
    first, second = torch.randint(4, (2, 14), generator=torch.Generator().manual_seed(seed))
    room = shard_sums(loose.table_bytes, torch.stack([first, second]), 4).max()
    task = replace(loose, memory_bytes=int(room))
    current = used(task, first)
    target = rename_devices(task, placed(task, second), current.shards)
    price = MovePrice(steps_until_next=count, bytes_per_s=1e9)
    weighed = weigh(task, current, target, A100, price)
    totals = list(map(price.total_ms, (weighed.kept, weighed.moved_all)))
    assert price.total_ms(weighed.chosen) <= min(totals)
    for point in (*weighed.curve, weighed.chosen):
        assert violation(task, point.placement) == ""
        assert point.moved_bytes == moved_bytes(steps(task, current.shards, point.placement))
        assert point.overall_ms == float(A100.predict(task, point.placement).overall_ms())


def test_new_tables_cost_no_moves_wherever_they_go():
    task = two_devices()
    weighed = weigh(task, used(two_devices(3), [0, 0, 1], task), placed(task, [0, 0, 1, 1]), A100, DEAR)
    assert weighed.chosen.moved_bytes == 0
    assert weighed.chosen.placement.tables[3].where == (1,)


PINNED, THREE = two_devices(constraints=Constraints(pinned={"t0": (1,)})), replace(two_devices(), num_devices=3)
CACHED = two_devices(constraints=Constraints(caching=True))
HELD = Placement.whole([0, 0, 1, 1], 2)
UNKNOWN = with_table(HELD, 0, TableSharding("table_wise", where=(0,), cached_share=0.5))


@pytest.mark.parametrize(
    ("task", "held", "target", "by", "why"),
    [
        (PINNED, HELD, [1, 0, 1, 1], lambda: A100, "table 't0' has a shard on device 0, which it may not use"),
        (THREE, HELD, [0, 0, 1, 2], lambda: A100, "it is for 2 devices"),
        (CACHED, UNKNOWN, [0, 0, 1, 1], learnt_placer, "its cost is not known"),
    ],
)
def test_a_plan_that_cannot_be_kept_is_left_with_the_reason(task, held, target, by, why):
    current = Current.of(make_plan(replace(task, num_devices=2, constraints=CACHED.constraints), held, "old"), task)
    weighed = weigh(task, current, placed(task, target), by(), DEAR)
    assert (weighed.kept, weighed.chosen) == (None, weighed.moved_all)
    assert why in weighed.why_not_kept


def test_sharding_types_change_on_the_way_too():
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
    weighed = weigh(unsaid, Current.of(plan, unsaid), wider, A100, DEAR)
    assert weighed.why_not_kept == "it spreads rows over hosts of 2 devices"
    assert weighed.chosen == weighed.moved_all
    same = Placement((replace(on_host, where=(0,)), whole), 4, 2)
    assert weigh(old, Current.of(plan, old), same, A100, DEAR).chosen.moved_bytes == 0


@pytest.mark.parametrize(
    ("before", "target", "more"),
    [
        (TableSharding("row_wise"), (0,), {"pinned": {"t0": (0, 1)}}),
        (TableSharding("table_row_wise", where=(0,)), (2,), {"pinned": {"t0": (1, 2, 3)}}),
        (TableSharding("column_wise", ((0, 4), (4, 64)), (0, 1)), (0,), {"narrowest_columns_of": {"t0": 8}}),
        (TableSharding("row_wise"), (0,), {"apart": (frozenset({"t0", "t1"}),)}),
    ],
)
def test_a_sharding_that_is_forbidden_now_changes_alone(before, target, more):
    old = replace(two_devices(8, constraints=ANY_SHARDING), num_devices=4, devices_per_host=2)
    held = with_table(placed(old, [0, 1, 2, 3, 0, 1, 2, 3], per_host=2), 0, before)
    task = replace(old, constraints=replace(ANY_SHARDING, **more))
    swapped = with_table(
        placed(old, [0, 2, 3, 1, 1, 2, 3, 0], per_host=2), 0, TableSharding("table_wise", where=target)
    )
    weighed = weigh(task, Current.of(make_plan(old, held, "old"), task), swapped, A100, DEAR)
    assert weighed.chosen.moved_bytes <= 100_000 * 64 * 4 < weighed.moved_all.moved_bytes


def test_moves_are_weighed_if_a_short_last_block_alone_fits():
    task = PlacementTask(tables_of([5, 7, 7]), 4, 8 * ROW_BYTES, constraints=ANY_SHARDING)
    rows = TableSharding("row_wise")  # blocks of 2, 2, 1 and 0 rows
    target = with_table(placed(task, [0, 3, 2]), 0, rows)
    current = Current.of(make_plan(task, with_table(placed(task, [0, 2, 0]), 0, rows), "old"), task)
    weighed = weigh(task, current, target, A100, DEAR)
    assert (weighed.kept, violation(task, weighed.chosen.placement)) == (None, "")
