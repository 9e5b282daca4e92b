import pytest
import torch

from dreamshard.explain import table_shares
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


def whole(task, devices):
    return Placement.whole(devices, task.num_devices, task.devices_per_host)


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
    shares = table_shares(task, whole(task, [0, 0, 1]), A100)
    costs = A100.predict(task, whole(task, [0, 0, 1])).phases_ms[0]
    saved = []
    for kept in ([1, 2], [0, 2]):
        less = PlacementTask(task.tables.select(kept), 2, 2**40)
        saved.append(costs[0] - A100.predict(less, whole(less, [0, 1])).phases_ms[0, 0])
    assert float(shares.phases_ms[0, 0] / shares.phases_ms[1, 0]) == pytest.approx(float(saved[0] / saved[1]))
    assert float(shares.phases_ms[0, 1] / shares.phases_ms[1, 1]) == pytest.approx(64 / 32)
