import json

import pytest
import torch

from dreamshard.costs import DeviceCosts
from dreamshard.placement import Placement, TableSharding
from dreamshard.plan import CurrentPlan, Plan, Shard, make_plan, parse_plan, read_plan
from dreamshard.shards import Shards, violation
from dreamshard.tables import Tables
from dreamshard.task_sets.fixed_model import split_by_columns
from dreamshard.tasks import PlacementTask
from tests.helpers.tables import roomy_task, tables_of, tables_of_dims


def tables(rows=(10, 20, 30), dim=(4, 8, 4)) -> Tables:
    return tables_of(rows, dim)


def plan() -> Plan:
    return make_plan(PlacementTask(tables(), 2, 2**20), Placement.whole(torch.tensor([1, 0, 1]), 2), "size_greedy")


def test_a_plan_read_back_from_its_json_is_the_same_plan():
    assert parse_plan(plan().to_json()) == plan()


def test_a_plan_gives_the_placement_it_was_made_of_whatever_the_order_of_the_tables():
    assert plan().placement(tables()).device.tolist() == [1, 0, 1]
    assert plan().placement(tables().select([2, 1, 0])).device.tolist() == [1, 0, 1]
    assert plan().placement(tables().select([1, 0])).device.tolist() == [0, 1]


def test_a_plan_with_predictions_says_the_slowest_device_and_the_phases_of_each():
    costs = DeviceCosts.from_phases(torch.tensor([[1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 1.0, 1.0]]))
    made = make_plan(
        PlacementTask(tables(), 2, 2**20), Placement.whole(torch.tensor([1, 0, 1]), 2), "dreamshard", costs
    )
    assert made.overall_ms == 10.0
    assert made.devices[0]["backward_compute_ms"] == 4.0
    read = json.loads(made.to_json())
    assert set(read) == {
        "num_devices",
        "placer",
        "predicted",
        "costs_of",
        "differs_in",
        "warning",
        "not_measured",
        "shards",
        "rows",
    }
    assert read["predicted"]["devices"][1]["forward_comm_ms"] == 1.0


def test_the_csv_of_a_plan_has_one_row_per_shard():
    assert plan().to_csv().splitlines() == ["table,device,column_start,column_end", "t0,1,0,4", "t1,0,0,8", "t2,1,0,4"]


@pytest.mark.parametrize(
    ("shards", "match"),
    [
        ([{"table": "a", "device": 2, "column_start": 0, "column_end": 4}], "devices 0..1"),
        ([{"table": "a", "device": 0, "column_start": 4, "column_end": 8}], "one too many"),
        ([{"table": "a", "device": 0, "column_start": 0, "column_end": 4}] * 2, "one too many"),
        ([{"table": "a", "device": 0}], "not a plan"),
        ("text", "not a plan"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(shards, match):
    with pytest.raises(ValueError, match=match):
        parse_plan(json.dumps({"num_devices": 2, "placer": "x", "shards": shards})).placement(
            tables_of([5], 4, names=("a",))
        )


def test_a_missing_or_truncated_plan_file_is_one_clear_error(tmp_path):
    with pytest.raises(ValueError, match="no plan at"):
        read_plan(tmp_path / "none.json")
    cut = tmp_path / "cut.json"
    cut.write_text(plan().to_json()[:40])
    with pytest.raises(ValueError, match="is not a plan"):
        read_plan(cut)


def in_use(num_devices: int, *shards: tuple[str, int, int, int]) -> CurrentPlan:
    """A plan made by hand; each shard is table, device, first and last column (exclusive)."""
    held = tuple(Shard(table=table, device=d, column_start=start, column_end=end) for table, d, start, end in shards)
    return CurrentPlan(Plan(num_devices=num_devices, placer="by hand", shards=held))


def test_the_plan_in_use_places_a_model_whole_and_split_by_columns():
    whole = PlacementTask(tables_of([10, 10], [8, 16], names=("a", "b")), 2, 2**20)
    current = in_use(2, ("a", 0, 0, 8), ("b", 0, 0, 12), ("b", 1, 12, 16))
    placement = current.place(whole)
    first = TableSharding("table_wise", where=(0,))
    assert placement.tables == (first, TableSharding("column_wise", ((0, 12), (12, 16)), (0, 1)))
    split = split_by_columns(whole, torch.tensor([1, 2]))  # b[0:8] and b[8:16], of which the second is on both devices
    placement = current.place(split)
    assert [each.where for each in placement.tables] == [(0,), (0,), (0, 1)]
    assert not violation(split, placement)
    assert Shards.of(split, placement).tables.names == ("a", "b[0:8]", "b[8:12]", "b[12:16]")


def test_a_plan_of_another_model_or_of_other_devices_is_refused():
    task = PlacementTask(tables_of([10, 10], 8, names=("a", "b")), 2, 2**20)
    with pytest.raises(ValueError, match="does not place the 8 columns of table 'b' once"):
        in_use(2, ("a", 0, 0, 8)).place(task)
    with pytest.raises(ValueError, match="for 3 devices, but task has 2"):
        in_use(3, ("a", 0, 0, 8), ("b", 0, 0, 8)).place(task)


def test_a_plan_in_use_of_other_ways_to_shard_is_not_measured_as_if_it_were_whole():
    shards = tuple(
        Shard(
            table="a",
            device=d,
            column_start=0,
            column_end=8,
            row_start=5 * d,
            row_end=5 * d + 5,
            sharding_type="row_wise",
        )
        for d in range(2)
    )
    current = CurrentPlan(Plan(num_devices=2, placer="by hand", shards=shards))
    with pytest.raises(ValueError, match="in other ways than whole or by columns"):
        current.place(roomy_task(tables_of_dims([8], rows=10, names=["a"])))
