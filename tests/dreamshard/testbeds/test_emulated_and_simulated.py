import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from dreamshard.constraints import ANY_SHARDING
from dreamshard.costs import Exchange, Infeasible
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.tables import SHARDING_TYPES, Placement, TableSharding
from dreamshard.tasks import Shards
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.device import Device
from dreamshard.testbeds.kinds import EmulatedTestbed
from tests.helpers.lookups import BATCH, TABLES, EvenLookups
from tests.helpers.tables import roomy_task, tables_of_dims
from tests.helpers.testbeds import any_sharding_task, of_every_type, on_two, simulated

H100 = PRESETS["h100"]
PLAIN = replace(PRESETS["v100"], link=None)  # its link is a latency and a bandwidth


def bed_of(device_type="cpu", target=PLAIN, **changes) -> EmulatedTestbed:
    given = {"num_devices": 2, "batch_size": BATCH, "lookups": EvenLookups(BATCH)}
    return EmulatedTestbed(TestbedSetup(**{**given, **changes}), device_type, target)


def test_one_device_measures_all_with_the_targets_links():
    bed = bed_of()
    sample = bed.measure(roomy_task(TABLES), on_two(0, 0, 1))
    assert (sample.testbed, sample.clock, sample.repeats) == ("emulated", "thread_cpu", 1)
    assert sample.hardware.endswith("for each device, links of v100")
    assert (sample.costs.phases_ms > 0).all()
    assert sample.versions["torch"] == str(torch.__version__)
    expected_ms = 1e3 * (128 * 4 * BATCH / 2 / PLAIN.link_bytes_per_s + PLAIN.link_latency_s)
    alone = bed.measure_exchange(Exchange(sent_bytes=torch.tensor([128, 16]) * 4 * BATCH))
    for comm_ms in (*sample.costs.phases_ms[:, 1:3].T, alone.forward_ms, alone.backward_ms):
        assert comm_ms.tolist() == pytest.approx([expected_ms] * 2, rel=1e-5)
    assert (alone.host_devices, alone.hardware) == (PLAIN.devices_per_host, bed.hardware)


def test_shards_without_room_are_a_sample_with_its_bytes(monkeypatch):
    asked = 500 * 128 * 4 + 2 * 4 * BATCH * 128
    monkeypatch.setattr(Device, "free_bytes", lambda device: asked - 1)
    bed = bed_of()
    sample = bed.measure(roomy_task(TABLES), on_two(0, 0, 1))
    assert sample.infeasible == Infeasible(device=1, asked_bytes=asked, free_bytes=asked - 1)
    assert (sample.overall_ms, float(sample.costs.phases_ms.sum())) == (math.inf, 0)
    assert bed.measure(roomy_task(TABLES.select([0, 1])), on_two(0, 1)).infeasible is None


def sharded(*tables: TableSharding):
    """A task of tables of 16 columns, and their placement on one host of four devices."""
    task = replace(roomy_task(tables_of_dims([16] * len(tables), rows=500), 4), constraints=ANY_SHARDING)
    return task, Placement(tables, 4, 4)


def test_every_sharding_type_is_measured():
    whole, on_host = TableSharding("table_wise", where=(1,)), TableSharding("table_row_wise", where=(0,))
    bed, given = bed_of(), sharded(TableSharding("row_wise"), TableSharding("data_parallel"), whole, on_host)
    sample = bed.measure(*given)
    assert (sample.costs.phases_ms > 0).all()
    assert torch.equal(sample.costs.phases_ms[..., 1], sample.costs.phases_ms[:1, 1].expand(4))
    assert (sample.costs.phases_ms[..., 2] > sample.costs.phases_ms[..., 1]).all()
    bed = bed_of(batch_size=4096, lookups=EvenLookups(4096, per_sample=400))  # of the first 8 of 500 rows
    costs = bed.measure(*sharded(TableSharding("row_wise"))).costs
    assert costs.phases_ms[0, 0] > 2 * costs.phases_ms[1:, 0].max(), "blocks beyond the rows looked up cost less"


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_on_cuda_an_oversized_shard_is_infeasible_and_others_run():
    bed = bed_of("cuda", H100)
    sample = bed.measure(roomy_task(tables_of_dims([256], rows=2**32), memory_bytes=2**50), on_two(0))
    assert sample.infeasible.asked_bytes > 2**42
    for precision in ("fp32", "fp16", "int8"):
        sample = bed.measure(replace(roomy_task(TABLES), precision=precision), on_two(0, 0, 1))
        assert (sample.clock, sample.infeasible) == ("cuda_event", None)


V100 = PRESETS["v100"]
DIMS = [4, 8, 16, 32, 64, 128]


make_testbed = partial(simulated, batch_size=4096, spec=V100)


def exchange(*sent_bytes: int) -> Exchange:
    return Exchange(sent_bytes=torch.tensor(sent_bytes))


def test_the_same_seed_and_content_cost_the_same_in_any_order():
    task, first, second = roomy_task(tables_of_dims(DIMS)), on_two(0, 0, 0, 1, 1, 1), on_two(0, 1, 0, 1, 0, 1)
    one, other = make_testbed(), make_testbed()
    forwards = [one.measure(task, placed).overall_ms for placed in (first, second)]
    assert forwards[::-1] == [other.measure(task, placed).overall_ms for placed in (second, first)]
    other.measure_exchange(exchange(9, 9))
    again = [bed.measure_exchange(exchange(5, 7)).forward_ms for bed in (one, other, make_testbed(noise=0.0))]
    assert torch.equal(again[0], again[1])
    assert not torch.equal(again[0], again[2])


def test_noise_is_relative_and_of_the_size_asked_for():
    task, noisy, exact = roomy_task(tables_of_dims([16] * 12)), make_testbed(noise=0.01), make_testbed(noise=0.0)
    ratios = []
    for i in range(60):
        where = on_two(*[(i >> bit) & 1 for bit in range(12)])
        expected = exact.measure(task, where).costs.phases_ms
        ratios.append((noisy.measure(task, where).costs.phases_ms / expected)[expected > 0])
    ratios = torch.cat(ratios)
    assert ratios.mean().item() == pytest.approx(1, abs=0.003)
    assert ratios.std().item() == pytest.approx(0.01, rel=0.1)


def test_an_exchange_costs_the_same_as_in_a_placement():
    bed, task = make_testbed(noise=0.0), roomy_task(tables_of_dims(DIMS))
    costs = bed.measure(task, on_two(0, 0, 0, 1, 1, 1)).costs
    alone = bed.measure_exchange(exchange(4 * 4096 * sum(DIMS[:3]), 4 * 4096 * sum(DIMS[3:])))
    torch.testing.assert_close(alone.forward_ms, costs.phases_ms[..., 1])
    torch.testing.assert_close(alone.backward_ms, costs.phases_ms[..., 2])
    assert (alone.hardware, alone.clock, alone.host_devices) == ("simulated v100", "model", V100.devices_per_host)


@pytest.mark.parametrize("sharding_type", SHARDING_TYPES)
def test_every_sharding_type_has_costs_that_repeat(sharding_type):
    task = any_sharding_task(tables_of_dims([64], rows=10_000, pooling=8.0), 4, devices_per_host=2)
    where = Placement((of_every_type(64)[sharding_type],), 4, 2)
    one, again = make_testbed().measure(task, where).costs, make_testbed().measure(task, where).costs
    assert torch.equal(one.phases_ms, again.phases_ms)
    holding = torch.zeros(4, dtype=torch.bool)
    holding[Shards.of(task, where).device] = True
    assert torch.equal(one.phases_ms[..., 0] > 0, holding)
    assert (one.phases_ms[..., 1] > 0).all() == (sharding_type != "data_parallel")
    assert (one.phases_ms[..., 2] > 0).all()
