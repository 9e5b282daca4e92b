from dataclasses import replace

import pytest

from dreamshard.constraints import ANY_SHARDING, Constraints
from dreamshard.explain import explain
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.placement import Placement, TableSharding
from dreamshard.search import RooflinePlacer
from dreamshard.tasks import PlacementTask
from tests.helpers.tables import tables_of, with_table

A100 = RooflinePlacer(PRESETS["a100"])


def task(**more):
    """Three tables; the first is looked up most."""
    return PlacementTask(tables_of([100_000] * 3, 64, [40.0, 10.0, 20.0]), 2, 2**40, **more)


def placed(of, devices):
    return Placement.whole(devices, of.num_devices, of.devices_per_host)


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
    reason = next(each for each in explain(of, placement, A100).tables if each.table == "t1")
    moved_ms = float(A100.predict(of, placed(of, [0, 1, 1])).overall_ms())
    assert reason.next_place.sharding.where == (1,)
    assert reason.next_place.overall_ms == pytest.approx(moved_ms, rel=1e-3)
    assert reason.next_way.sharding.sharding_type == "column_wise"  # the only other way that is allowed


def test_without_room_or_by_constraint_there_is_no_other_place():
    tight = replace(
        task(), memory_bytes=int(task().table_bytes[:2].sum()), constraints=Constraints(sharding_types=("table_wise",))
    )
    explained = explain(tight, placed(tight, [0, 0, 1]), A100)
    by_name = {reason.table: reason for reason in explained.tables}
    assert by_name["t2"].next_place is None
    assert by_name["t2"].bound == "nothing else has room"
    assert by_name["t0"].next_place.sharding.where == (1,)
    pinned = task(constraints=Constraints(pinned={"t0": (0,)}, sharding_types=("table_wise",)))
    reason = next(each for each in explain(pinned, placed(pinned, [0, 0, 1]), A100).tables if each.table == "t0")
    assert (reason.next_place, reason.bound) == (None, "its constraints leave nothing else")


def test_tables_on_all_devices_contribute_to_all():
    of = task(constraints=ANY_SHARDING)
    placement = with_table(placed(of, [0, 0, 1]), 0, TableSharding("row_wise"))
    explained = explain(of, placement, A100)
    assert all("t0" in device.saved_ms for device in explained.devices)
    reason = next(each for each in explained.tables if each.table == "t0")
    assert (reason.sharding, reason.next_place) == (TableSharding("row_wise"), None)
    next_ms = float(A100.predict(of, with_table(placement, 0, reason.next_way.sharding)).overall_ms())
    assert reason.next_way.overall_ms == pytest.approx(next_ms, rel=1e-3)


def test_a_table_is_not_split_into_narrower_columns_than_allowed():
    of = task(constraints=Constraints(narrowest_columns_of={"t0": 48, "t1": 32}))
    ways = {reason.table: reason.next_way for reason in explain(of, placed(of, [0, 0, 1]), A100).tables}
    assert ways["t0"] is None
    assert ways["t1"].sharding.sharding_type == "column_wise"
