"""The testbed without a device."""

import pytest
import torch

from dreamshard.constraints import Constraints
from dreamshard.costs import Exchange
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.placement import SHARDING_TYPES, Placement, TableSharding, even_columns
from dreamshard.shards import Shards
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.simulated import SimulatedTestbed
from tests.helpers.lookups import EvenLookups
from tests.helpers.tables import roomy_task, tables_of_dims
from tests.helpers.testbeds import device_costs

H100 = PRESETS["h100"]
V100 = PRESETS["v100"]

DIMS = [4, 8, 16, 32, 64, 128]


def make_testbed(seed: int = 0, noise: float = 0.01, spec=V100) -> SimulatedTestbed:
    setup = TestbedSetup(num_devices=2, batch_size=4096, lookups=EvenLookups(4096), seed=seed)
    return SimulatedTestbed(setup, spec, noise)


def placement(*device: int) -> Placement:
    return Placement.whole(torch.tensor(device), 2)


def test_the_same_seed_and_placement_cost_the_same_in_any_order():
    task, first, second = roomy_task(tables_of_dims(DIMS)), placement(0, 0, 0, 1, 1, 1), placement(0, 1, 0, 1, 0, 1)
    one, other = make_testbed(), make_testbed()
    forwards = [one.measure(task, first).overall_ms, one.measure(task, second).overall_ms]
    backwards = [other.measure(task, second).overall_ms, other.measure(task, first).overall_ms]
    assert forwards == backwards[::-1]


def test_noise_is_relative_and_of_the_size_asked_for():
    tables = tables_of_dims([16] * 12)
    task, noisy = roomy_task(tables), make_testbed(noise=0.01)
    ratios = []
    for i in range(60):
        where = placement(*[(i >> bit) & 1 for bit in range(12)])
        exact = make_testbed(noise=0.0).measure(task, where).costs.phases_ms()
        found = noisy.measure(task, where).costs.phases_ms()
        ratios.append((found / exact)[exact > 0])
    ratios = torch.cat(ratios)
    assert ratios.mean().item() == pytest.approx(1, abs=0.003)
    assert ratios.std().item() == pytest.approx(0.01, rel=0.1)


def test_a_batch_of_placements_costs_what_each_costs_alone():
    generator = torch.Generator().manual_seed(0)
    device = torch.randint(0, 3, (20, len(DIMS)), generator=generator)
    bed, tables = make_testbed(noise=0.0), tables_of_dims(DIMS)
    together = device_costs(bed, tables, device, 3, "fp16", "rowwise_adagrad").phases_ms()
    alone = torch.cat(
        [device_costs(bed, tables, row[None], 3, "fp16", "rowwise_adagrad").phases_ms() for row in device]
    )
    torch.testing.assert_close(together, alone)


def exchange(*sent_bytes: int, devices_per_host: int | None = None) -> Exchange:
    return Exchange(sent_bytes=torch.tensor(sent_bytes), devices_per_host=devices_per_host)


def test_an_exchange_costs_what_the_same_bytes_cost_in_a_placement():
    bed, task = make_testbed(noise=0.0), roomy_task(tables_of_dims(DIMS))
    costs = bed.measure(task, placement(0, 0, 0, 1, 1, 1)).costs
    sent = [4 * 4096 * sum(DIMS[:3]), 4 * 4096 * sum(DIMS[3:])]
    alone = bed.measure_exchange(exchange(*sent))
    torch.testing.assert_close(alone.forward_ms, costs.forward_comm_ms)
    torch.testing.assert_close(alone.backward_ms, costs.backward_comm_ms)
    assert (alone.hardware, alone.clock, alone.host_devices) == ("simulated v100", "model", V100.devices_per_node)


def test_noise_of_an_exchange_follows_from_seed_and_bytes_alone():
    first, second = make_testbed(), make_testbed()
    second.measure_exchange(exchange(9, 9))
    assert torch.equal(
        first.measure_exchange(exchange(5, 7)).forward_ms, second.measure_exchange(exchange(5, 7)).forward_ms
    )
    noisy = make_testbed(noise=0.1).measure_exchange(exchange(5, 7))
    assert not torch.equal(noisy.forward_ms, make_testbed(noise=0.0).measure_exchange(exchange(5, 7)).forward_ms)


def test_an_exchange_that_moves_nothing_is_refused():
    with pytest.raises(ValueError, match="moves nothing"):
        exchange(4)
    with pytest.raises(ValueError, match="moves nothing"):
        exchange(0, 0)


def any_sharding_task(tables, num_devices=4, **options):
    """Four devices on two hosts unless said otherwise, with room for all, where tables may be sharded in any way."""
    options = {
        "devices_per_host": 2,
        "constraints": Constraints(sharding_types=SHARDING_TYPES, caching=True),
        **options,
    }
    return PlacementTask(tables, num_devices, 2**40, **options)


def sharded(tables, *shardings, num_devices=4, per_host=2):
    return Placement(tuple(shardings), num_devices, per_host)


def every_way(dim: int) -> dict[str, TableSharding]:
    half = ((0, dim // 2), (dim // 2, dim))
    return {
        "table_wise": TableSharding("table_wise", where=(3,)),
        "column_wise": TableSharding("column_wise", columns=half, where=(0, 3)),
        "row_wise": TableSharding("row_wise"),
        "table_row_wise": TableSharding("table_row_wise", where=(1,)),
        "grid_shard": TableSharding("grid_shard", columns=half, where=(0, 1)),
        "data_parallel": TableSharding("data_parallel"),
    }


def test_columns_cost_the_same_as_tables_of_their_own():
    task = roomy_task(tables_of_dims(DIMS))
    halves = TableSharding("column_wise", even_columns(DIMS[-1], 2), (0, 1))
    where = placement(0, 0, 0, 1, 1, 1).with_table(len(DIMS) - 1, halves)
    sample = make_testbed().measure(task, where)
    alone = sample.of_whole_tables()
    again = make_testbed().measure(alone.task, alone.placement)
    assert torch.equal(sample.costs.phases_ms(), again.costs.phases_ms())


@pytest.mark.parametrize("way", SHARDING_TYPES)
def test_every_way_to_shard_has_costs_that_repeat(way):
    tables = tables_of_dims([64], rows=10_000, pooling=8.0)
    where = sharded(tables, every_way(64)[way])
    one, again = (make_testbed(noise=noise).measure(any_sharding_task(tables), where) for noise in (0.01, 0.01))
    assert torch.equal(one.costs.phases_ms(), again.costs.phases_ms())
    assert one.overall_ms == pytest.approx(one.costs.device_ms().max().item())
    holding = torch.zeros(4, dtype=torch.bool)
    holding[Shards.of(any_sharding_task(tables), where).device] = True
    assert torch.equal(one.costs.forward_compute_ms > 0, holding)
    assert (one.costs.forward_comm_ms > 0).all() == (way != "data_parallel")
    assert (one.costs.backward_comm_ms > 0).all()
