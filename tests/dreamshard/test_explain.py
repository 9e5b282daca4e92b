from dataclasses import replace

import pytest
import torch

from dreamshard.constraints import ANY_SHARDING, Constraints
from dreamshard.explain import explain, table_shares
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.placement import Placement, TableSharding
from dreamshard.search import RooflinePlacer
from dreamshard.shards import Shards
from dreamshard.tasks import PlacementTask
from tests.helpers.sharded_task import FOUR_DEVICES_ON_TWO_HOSTS, sharded_task
from tests.helpers.tables import tables_of, with_table
from tests.helpers.trained import learnt_placer

A100 = RooflinePlacer(PRESETS["a100"])
WITHOUT_CACHE = with_table(FOUR_DEVICES_ON_TWO_HOSTS, 4, TableSharding("column_wise", ((0, 4), (4, 8)), (1, 0)))


def task(**more):
    """Three tables; the first is looked up most."""
    return PlacementTask(tables_of([100_000] * 3, 64, [40.0, 10.0, 20.0]), 2, 2**40, **more)


def placed(of, devices):
    return Placement.whole(devices, of.num_devices, of.devices_per_host)


def reasons(of, placement):
    return {reason.table: reason for reason in explain(of, placement, A100).tables}


def test_each_device_names_its_phases_and_slow_tables():
    of, placement = task(), placed(task(), [0, 0, 1])
    explained = explain(of, placement, A100)
    costs = A100.predict(of, placement)
    assert [reason.total_ms for reason in explained.devices] == pytest.approx(costs.device_ms().tolist())
    assert list(explained.devices[0].phases_ms.values()) == pytest.approx(costs.phases_ms[0].tolist())
    assert [*explained.devices[0].saved_ms] == ["t0", "t1"]
    assert [*explained.devices[1].saved_ms] == ["t2"]
    without = replace(of, tables=of.tables.select([1, 2]))
    saved = costs.device_ms()[0] - A100.predict(without, placed(without, [0, 1])).device_ms()[0]
    assert explained.devices[0].saved_ms["t0"] == pytest.approx(float(saved), rel=1e-3)
    assert explained.tables[0].table == "t0"


def test_the_next_best_place_costs_the_moved_placement():
    of, placement = task(), placed(task(), [0, 0, 1])
    reason = reasons(of, placement)["t1"]
    moved_ms = float(A100.predict(of, placed(of, [0, 1, 1])).overall_ms())
    assert reason.next_place.sharding.where == (1,)
    assert reason.next_place.overall_ms == pytest.approx(moved_ms, rel=1e-3)
    assert reason.next_way.sharding.sharding_type == "column_wise"  # the only other way that is allowed


def test_without_room_or_by_constraint_there_is_no_other_place():
    tight = task(constraints=Constraints(sharding_types=("table_wise",)))
    tight = replace(tight, memory_bytes=int(tight.table_bytes[:2].sum()))
    by_name = reasons(tight, placed(tight, [0, 0, 1]))
    assert by_name["t2"].next_place is None
    assert by_name["t2"].bound == "nothing else has room"
    assert by_name["t0"].next_place.sharding.where == (1,)
    pinned = task(constraints=Constraints(pinned={"t0": (0,)}, sharding_types=("table_wise",)))
    reason = reasons(pinned, placed(pinned, [0, 0, 1]))["t0"]
    assert (reason.next_place, reason.bound) == (None, "its constraints leave nothing else")


def test_tables_on_all_devices_contribute_to_all():
    of = task(constraints=ANY_SHARDING)
    placement = with_table(placed(of, [0, 0, 1]), 0, TableSharding("row_wise"))
    assert all("t0" in device.saved_ms for device in explain(of, placement, A100).devices)
    reason = reasons(of, placement)["t0"]
    assert (reason.sharding, reason.next_place) == (TableSharding("row_wise"), None)
    next_ms = float(A100.predict(of, with_table(placement, 0, reason.next_way.sharding)).overall_ms())
    assert reason.next_way.overall_ms == pytest.approx(next_ms, rel=1e-3)


def test_a_table_is_not_split_into_narrower_columns_than_allowed():
    of = task(constraints=Constraints(narrowest_columns_of={"t0": 48, "t1": 32}))
    ways = reasons(of, placed(of, [0, 0, 1]))
    assert ways["t0"].next_way is None
    assert ways["t1"].next_way.sharding.sharding_type == "column_wise"


@pytest.mark.parametrize(
    ("placement", "predictor"),
    [(FOUR_DEVICES_ON_TWO_HOSTS, A100), (WITHOUT_CACHE, A100), (WITHOUT_CACHE, learnt_placer())],
    ids=["preset with a cache", "preset with columns", "network with columns"],
)
def test_shares_add_up_to_what_each_device_costs_and_holds(placement, predictor):
    task = sharded_task()
    shares = table_shares(task, placement, predictor)
    expected = predictor.predict(task, placement).phases_ms
    summed = shares.rest_ms.index_add(0, shares.device, shares.phases_ms)
    torch.testing.assert_close(summed, expected.double(), rtol=1e-4, atol=1e-6)
    assert (shares.phases_ms >= 0).all()
    held = torch.zeros(4, dtype=torch.int64).index_add_(0, shares.device, shares.memory_bytes)
    assert held.tolist() == Shards.of(task, placement).memory_bytes().tolist()


def test_compute_is_divided_by_savings_and_exchange_by_columns():
    task = PlacementTask(tables_of([100_000] * 3, [64, 32, 64], [40.0, 10.0, 20.0]), 2, 2**40)
    shares = table_shares(task, placed(task, [0, 0, 1]), A100)
    costs = A100.predict(task, placed(task, [0, 0, 1])).phases_ms[0]
    saved = []
    for kept in ([1, 2], [0, 2]):
        less = PlacementTask(task.tables.select(kept), 2, 2**40)
        saved.append(costs[0] - A100.predict(less, placed(less, [0, 1])).phases_ms[0, 0])
    assert float(shares.phases_ms[0, 0] / shares.phases_ms[1, 0]) == pytest.approx(float(saved[0] / saved[1]))
    assert float(shares.phases_ms[0, 1] / shares.phases_ms[1, 1]) == pytest.approx(64 / 32)
