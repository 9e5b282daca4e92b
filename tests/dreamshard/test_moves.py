from dataclasses import replace

import pytest

from dreamshard.constraints import ANY_SHARDING, Constraints
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.moving import InUse, MovePrice, Step, moved_bytes, rename_devices, steps, weigh
from dreamshard.placement import Placement, TableSharding
from dreamshard.plan import make_plan
from dreamshard.search import RooflinePlacer
from dreamshard.shards import Shards
from dreamshard.tasks import PlacementTask
from tests.helpers.tables import ROW_BYTES, tables_of, task_of, with_table


def placed(task, devices, per_host=None):
    return Placement.whole(devices, task.num_devices, per_host)


def between(task, before, after):
    found = steps(task, Shards.of(task, before), after)
    return [step for step in found if step.source is not None]


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


def test_tables_on_hosts_move_with_their_host():
    constraints = replace(ANY_SHARDING)
    task = replace(task_of([8, 6], num_devices=4, room_rows=20), devices_per_host=2, constraints=constraints)
    on_host = lambda host: TableSharding("table_row_wise", where=(host,))  # noqa: E731
    whole = lambda device: TableSharding("table_wise", where=(device,))  # noqa: E731
    before = Shards.of(task, Placement((on_host(0), whole(1)), 4, 2))
    after = rename_devices(task, Placement((on_host(1), whole(2)), 4, 2), before)
    assert after == Placement((on_host(0), whole(1)), 4, 2)


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


def test_new_gone_and_resized_tables_differ_from_the_rest():
    old = PlacementTask(tables_of([5, 4, 3], names=["same", "gone", "wider"]), 2, 2**20)
    plan = make_plan(old, placed(old, [0, 1, 1]), "old")
    today = tables_of([5, 3, 2], [4, 8, 4], names=["same", "wider", "new"])
    task = PlacementTask(today, 2, 2**20)
    current = InUse.of(plan, task)
    assert (current.new, current.changed, current.removed) == (("new",), ("wider",), ("gone",))
    assert (current.task.tables.names, current.placement.tables[0].where) == (("same",), (0,))
    first, *loaded = steps(task, current.shards, placed(task, [1, 1, 0]))
    assert first == Step("same", (0, 5), (0, 4), 0, 1, 5 * ROW_BYTES)
    assert [(step.table, step.source, step.target) for step in loaded] == [("wider", None, 1), ("new", None, 0)]


def test_a_plan_of_other_tables_or_sizes_is_refused():
    old = task_of([5], num_devices=2, room_rows=10)
    plan = make_plan(old, placed(old, [0]), "old")
    for others in (tables_of([5], prefix="other"), tables_of([5], dim=8)):
        with pytest.raises(ValueError):
            InUse.of(plan, PlacementTask(others, 2, 2**20))


def test_other_names_that_cost_more_are_not_taken():
    tables = tables_of([5, 500, 500, 500], dim=64, pooling=[100.0, 5.0, 20.0, 40.0])  # blocks of 2, 2, 1 and 0 rows
    task = PlacementTask(tables, 4, 2**30, constraints=ANY_SHARDING)
    rows, prior = TableSharding("row_wise"), RooflinePlacer(PRESETS["a100"])
    target = with_table(placed(task, [0, 3, 0, 1]), 0, rows)
    current = InUse.of(make_plan(task, with_table(placed(task, [0, 0, 1, 3]), 0, rows), "old"), task)
    free = MovePrice(steps_until_next=1e12, bytes_per_s=1e12)
    weighed = weigh(task, current, target, prior, free)
    assert weighed.moved_all.overall_ms <= float(prior.predict(task, target).overall_ms())
