"""A changed table costs what the whole placement would."""

from dataclasses import replace

import pytest

from dreamshard.constraints import Constraints
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.placement import SHARDING_TYPES, Placement, TableSharding
from dreamshard.search import RooflinePlacer
from dreamshard.search.changes import Changes
from dreamshard.tasks import PlacementTask
from tests.helpers.tables import tables_of
from tests.helpers.trained import learnt_placer

EVERY_WAY = (
    TableSharding("row_wise"),
    TableSharding("column_wise", ((0, 4), (4, 8)), (1, 3)),
    TableSharding("data_parallel"),
    TableSharding("grid_shard", ((0, 4), (4, 8)), (1, 0)),
    TableSharding("table_row_wise", where=(1,)),
    TableSharding("table_wise", where=(2,)),
    TableSharding("table_wise", where=(2,), cached_share=0.5),
)
PLACERS = {"preset": (RooflinePlacer(PRESETS["a100"]), EVERY_WAY), "network": (learnt_placer(), EVERY_WAY[:-1])}


@pytest.fixture(params=PLACERS)
def case(request):
    """A predictor, a task, a placement in every way that the predictor knows, and its changes."""
    placer, ways = PLACERS[request.param]
    rows = [100_000, 70_000, 400, 50_001, 60_002, 90_000, 1000]
    tables = tables_of(rows, 8, [2.0, 5.0, 1.0, 3.0, 2.0, 4.0, 6.0]).select(range(len(ways)))
    any_way = Constraints(sharding_types=SHARDING_TYPES, caching=True)
    task = PlacementTask(tables, 4, 2**30, devices_per_host=2, constraints=any_way)
    placement = Placement(ways, 4, 2)
    return placer, task, placement, Changes.of(task, placer.costs(task), placement, [ways] * len(ways))


def test_a_table_sharded_otherwise_costs_what_the_whole_placement_would(case):
    placer, task, placement, changes = case
    ways = placement.tables
    found = changes.after([(t, way) for t in range(len(ways)) for way in ways])
    expected = [
        placer.predict(task, placement.with_table(t, way)).device_ms().tolist()
        for t in range(len(ways))
        for way in ways
    ]
    for device_ms, each in zip(found.device_ms.tolist(), expected, strict=True):
        assert device_ms == pytest.approx(each, rel=2e-3)
    assert found.fits.all()
    assert changes.device_ms().tolist() == found.device_ms[0].tolist()


def test_without_a_table_costs_are_those_of_the_other_tables(case):
    placer, task, placement, changes = case
    found = changes.after([(t, None) for t in range(len(placement.tables))])
    for t, device_ms in enumerate(found.device_ms.tolist()):
        rest = [other for other in range(len(placement.tables)) if other != t]
        others = replace(task, tables=task.tables.select(rest))
        without = Placement(tuple(placement.tables[other] for other in rest), 4, 2)
        assert device_ms == pytest.approx(placer.predict(others, without).device_ms().tolist(), rel=2e-3)


def test_a_change_that_has_no_room_does_not_fit():
    task = PlacementTask(tables_of([100] * 4), 2, 2 * 100 * 16)
    placement = Placement.whole([0, 0, 1, 1], 2)
    costs = RooflinePlacer(PRESETS["a100"]).costs(task)
    found = Changes.of(task, costs, placement).after([(0, placement.tables[0]), (0, placement.tables[2])])
    assert found.fits.tolist() == [True, False]
