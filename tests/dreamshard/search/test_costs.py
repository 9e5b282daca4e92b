"""One cost model: the sums of shards, and of changed placements, cost what whole placements do."""

from dataclasses import replace

import pytest
import torch

from dreamshard.constraints import ANY_SHARDING, Constraints
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.search import RooflinePlacer
from dreamshard.search.costs import changed_ms
from dreamshard.tables import SHARDING_TYPES, Placement, TableSharding
from dreamshard.tasks import PlacementTask
from tests.helpers.tables import tables_of, with_table
from tests.helpers.trained import learnt_placer

EVERY_TYPE = (
    TableSharding("row_wise"),
    TableSharding("column_wise", ((0, 4), (4, 8)), (1, 3)),
    TableSharding("data_parallel"),
    TableSharding("grid_shard", ((0, 4), (4, 8)), (1, 0)),
    TableSharding("table_row_wise", where=(1,)),
    TableSharding("table_wise", where=(2,)),
    TableSharding("table_wise", where=(2,), cached_share=0.5),
)
CASES = {
    "preset": (RooflinePlacer(PRESETS["a100"]), EVERY_TYPE),
    "network": (learnt_placer(), EVERY_TYPE[:-1]),
    "paper": (learnt_placer("paper"), (EVERY_TYPE[1], EVERY_TYPE[5])),
}


@pytest.fixture(params=CASES)
def case(request):
    """A placer, a task, a placement of every sharding type that the placer knows, and its cost model."""
    placer, shardings = CASES[request.param]
    rows = [100_000, 70_000, 400, 50_001, 60_002, 90_000, 1000]
    tables = tables_of(rows, 8, [2.0, 5.0, 1.0, 3.0, 2.0, 4.0, 6.0]).select(range(len(shardings)))
    any_type = Constraints(sharding_types=SHARDING_TYPES, caching=True)
    task = PlacementTask(tables, 4, 2**30, devices_per_host=2, constraints=any_type)
    return placer, task, Placement(shardings, 4, 2), placer.costs(task)


def close(expected):
    return pytest.approx(expected, rel=1e-4)


def test_a_table_sharded_otherwise_costs_its_whole_placement(case):
    placer, task, placement, model = case
    changes = [(t, sharding) for t in range(len(placement.tables)) for sharding in placement.tables]
    device_ms, fits = changed_ms(model, placement, changes)
    for changed, (t, sharding) in zip(device_ms.tolist(), changes, strict=True):
        assert changed == close(placer.predict(task, with_table(placement, t, sharding)).device_ms().tolist())
    assert fits.all()


def test_without_a_table_costs_are_those_of_the_other_tables(case):
    placer, task, placement, model = case
    device_ms, _ = changed_ms(model, placement, [(t, None) for t in range(len(placement.tables))])
    for t, ms in enumerate(device_ms.tolist()) if placer.name != "paper" else ():  # whose features go by the task
        rest = [other for other in range(len(placement.tables)) if other != t]
        others = replace(task, tables=task.tables.select(rest))
        without = Placement(tuple(placement.tables[other] for other in rest), 4, 2)
        assert ms == close(placer.predict(others, without).device_ms().tolist())


def test_an_all_reduce_costs_two_all_to_alls_of_its_bytes():
    task = PlacementTask(tables_of([10**4] * 4, dim=100), 4, 2**40, constraints=ANY_SHARDING)
    placer = learnt_placer()
    exchanged = placer.predict(task, Placement.whole(torch.arange(4), 4))  # every device sends 100 dims
    batch_size, model = int(placer.cost_network.exchanges.batch_size), placer.costs(task)
    rows, copies = torch.tensor([[0, 100, 0, 0], [0, 0, 100 * 4 * batch_size, 0]]).double()
    rows_ms, reduced_ms = model.collectives_ms(torch.stack([rows, copies]))
    assert float(reduced_ms[1]) == pytest.approx(2 * float(exchanged.phases_ms[0, 2]), rel=0.02)
    both_ways = exchanged.phases_ms[..., 1] + exchanged.phases_ms[..., 2]
    assert float(rows_ms.sum()) == pytest.approx(float(both_ways[0]), rel=0.02)


def test_twice_the_batch_sends_more_of_rows_and_reduces_the_same_gradients():
    placer, tables = learnt_placer(), tables_of([1000, 2000], 8, [1.0, 1.0])

    def comm_ms(sharding_type, times):
        task = PlacementTask(tables, 2, 2**30, batch_size=times * int(placer.cost_network.exchanges.batch_size))
        return float(placer.predict(task, Placement((TableSharding(sharding_type),) * 2, 2, 2)).phases_ms[0, 1:3].sum())

    assert comm_ms("row_wise", 2) > 1.2 * comm_ms("row_wise", 1)
    assert comm_ms("data_parallel", 2) == pytest.approx(comm_ms("data_parallel", 1), rel=1e-3)
