import json
from dataclasses import replace

import pytest
import torch

from dreamshard.constraints import Constraints
from dreamshard.plan import CurrentPlan, parse_plan, read_plan
from dreamshard.planning import make_plan
from dreamshard.search.packing import split_by_columns
from dreamshard.tables import SHARDING_TYPES, Placement, TableSharding
from dreamshard.tasks import PlacementTask, Shards, violation
from tests.helpers.tables import FOUR_DEVICES_ON_TWO_HOSTS, sharded_task, tables_of

TABLES = tables_of((10, 20, 30), (4, 8, 4))
TASK, PLACEMENT = PlacementTask(TABLES, 2, 2**20), Placement.whole([1, 0, 1], 2)
HEADER = "table,device,column_start,column_end,row_start,row_end,sharding_type,cached_share"


def test_a_plan_restores_its_placement_in_any_table_order():
    plan = make_plan(TASK, PLACEMENT, "size_greedy")
    assert parse_plan(plan.to_json()) == plan
    for order in ([0, 1, 2], [2, 1, 0], [1, 0]):
        assert plan.placement(TABLES.select(order)).device.tolist() == [[1, 0, 1][t] for t in order]
    rows = ["t0,1,0,4,0,10,table_wise,", "t1,0,0,8,0,20,table_wise,", "t2,1,0,4,0,30,table_wise,"]
    assert plan.to_csv().splitlines() == [HEADER, *rows]


def test_a_plan_of_every_sharding_type_is_read_as_it_was_written():
    task = sharded_task()
    plan = parse_plan(make_plan(task, FOUR_DEVICES_ON_TWO_HOSTS, "test").to_json())
    assert plan.placement(task.tables) == FOUR_DEVICES_ON_TWO_HOSTS
    assert plan.not_measured == ["a", "b", "c", "e"]
    listed = [[int(cell) for cell in line.split(",")[1:6]] for line in plan.to_csv().splitlines()[1:]]
    shards = Shards.of(task, FOUR_DEVICES_ON_TWO_HOSTS)
    assert listed == torch.cat([shards.device[:, None], shards.columns, shards.rows], 1).tolist()


def test_rows_and_copies_on_many_devices_take_little_of_a_file():
    shardings = (TableSharding("row_wise"), TableSharding("data_parallel"), TableSharding("table_row_wise", where=(3,)))
    task = PlacementTask(tables_of([1000] * 1933, 8), 96, 2**40)
    plan = make_plan(task, Placement(tuple(shardings[t % 3] for t in range(1933)), 96, 8), "test")
    assert len(plan.to_json()) < 2**20


BY_COLUMNS = {"sharding_type": "column_wise", "columns": [[0, 8]]}


@pytest.mark.parametrize("table", [{"where": [2]}, {"where": [0, 1]}, {"dim": 8}, BY_COLUMNS, {"where": None}])
def test_a_missing_or_contradictory_plan_is_refused(table, tmp_path):
    with pytest.raises(ValueError):
        read_plan(tmp_path / "none.json")
    entry = {"rows": 5, "dim": 4, "sharding_type": "table_wise", "where": [0], **table}
    with pytest.raises(ValueError):
        parse_plan(json.dumps({"num_devices": 2, "tables": {"a": entry}})).placement(tables_of([5], 4, names=("a",)))


def current_plan(task: PlacementTask, *shardings: TableSharding) -> CurrentPlan:
    placement = Placement(shardings, task.num_devices, task.num_devices)
    return CurrentPlan(make_plan(task, placement, "by hand"))


def test_the_current_plan_places_a_model_whole_and_split():
    whole = PlacementTask(tables_of([10, 10], [8, 16], names=("a", "b")), 2, 2**20)
    first = TableSharding("table_wise", where=(0,))
    current = current_plan(whole, first, TableSharding("column_wise", ((0, 12), (12, 16)), (0, 1)))
    assert current.place(whole).tables[0] == first
    split = split_by_columns(whole, torch.tensor([1, 2]))  # b[0:8] and b[8:16], which is on both devices
    placement = current.place(split)
    assert [table.where for table in placement.tables] == [(0,), (0,), (0, 1)]
    assert not violation(split, placement)
    assert Shards.of(split, placement).tables.labels == ["a", "b[0:8]", "b[8:12]", "b[12:16]"]


def test_a_table_larger_than_a_device_may_be_spread_in_a_plan():
    task = PlacementTask(tables_of([4000, 10], 16, names=("big", "b")), 2, 2**17 + 2**16, devices_per_host=2)
    held, grid = TableSharding("table_wise", where=(0,)), TableSharding("grid_shard", ((0, 12), (12, 16)), (0, 0))
    split = split_by_columns(task, torch.tensor([2, 1]))  # big[0:8] and big[8:16], of half its bytes each
    for sharding in (TableSharding("row_wise"), TableSharding("table_row_wise", where=(0,)), grid):
        spread = replace(split, constraints=Constraints(sharding_types=SHARDING_TYPES))
        placement = current_plan(task, sharding, held).place(spread)
        assert {table.sharding_type for table in placement.tables[:2]} == {sharding.sharding_type}
        assert not violation(spread, placement)


def test_a_plan_of_another_model_does_not_place_it():
    task = PlacementTask(tables_of([10, 10], 8, names=("a", "b")), 2, 2**20)
    one = replace(task, tables=task.tables.select([0]))
    current = current_plan(one, TableSharding("table_wise", where=(0,)))
    with pytest.raises(ValueError):
        current.place(task)
