"""One device standing for many, on the CPU's kernels."""

import math
from dataclasses import replace

import pytest
import torch

from dreamshard.constraints import ANY_SHARDING
from dreamshard.costs import Exchange, Infeasible
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.hardware.links import NETWORK_SHARE, PEER_S
from dreamshard.placement import Placement, TableSharding
from dreamshard.testbeds import emulated
from dreamshard.testbeds.base import Testbed, TestbedSetup
from dreamshard.testbeds.device import Device
from dreamshard.testbeds.emulated import EmulatedTestbed
from tests.helpers.lookups import EvenLookups
from tests.helpers.tables import roomy_task, tables_of_dims

H100 = PRESETS["h100"]
V100 = PRESETS["v100"]

BATCH = 64
TABLES = tables_of_dims([4, 8, 128], rows=500)
PLAIN = replace(V100, link_curve=None)  # its link is a latency and a bandwidth


def setup_of(**changes) -> TestbedSetup:
    given = {"num_devices": 2, "batch_size": BATCH, "lookups": EvenLookups(BATCH), "warmups": 1, "repeats": 3}
    return TestbedSetup(**{**given, **changes})


def bed_of(*, target=PLAIN, **changes) -> EmulatedTestbed:
    return EmulatedTestbed(setup_of(**changes), "cpu", target)


def placement(*device: int, num_devices: int = 2) -> Placement:
    return Placement.whole(torch.tensor(device), num_devices)


@pytest.fixture
def measured(monkeypatch) -> list[tuple[str, ...]]:
    """Tables of every device that is measured, in order."""
    names = []
    real = emulated.measure_operators

    def spy(task, shards, device, rank):
        names.append(shards.tables.names)
        return real(task, shards, device, rank)

    monkeypatch.setattr(emulated, "measure_operators", spy)
    return names


def sharded_task(num_tables: int):
    task = roomy_task(tables_of_dims([16] * num_tables, rows=500), 4)
    return replace(task, constraints=ANY_SHARDING)


def sharded(*tables: TableSharding) -> Placement:
    return Placement(tables, 4, 4)


ROW_WISE = TableSharding("row_wise")
COPIES = TableSharding("data_parallel")
WHOLE = TableSharding("table_wise", where=(1,))
ON_HOST = TableSharding("table_row_wise", where=(0,))


def test_one_device_measures_the_shard_of_each_and_says_whose_links_it_assumes():
    bed = bed_of()
    sample = bed.measure(roomy_task(TABLES), placement(0, 0, 1))
    assert isinstance(bed, Testbed)
    assert (sample.testbed, sample.clock, sample.repeats) == ("emulated", "thread_cpu", 3)
    assert sample.hardware.endswith("for each device, links of v100")
    assert (sample.costs.phases_ms() > 0).all()
    assert sample.overall_ms == pytest.approx(sample.costs.device_ms().max().item())
    assert sample.versions["torch"] == str(torch.__version__)


def test_a_shard_is_measured_once_however_many_placements_hold_it(measured):
    bed, task = bed_of(), roomy_task(TABLES)
    first = bed.measure(task, placement(0, 0, 1))
    again = bed.measure(task, placement(1, 1, 0))
    assert measured == [("table-0", "table-1"), ("table-2",)]
    assert again.costs.forward_compute_ms.tolist() == first.costs.forward_compute_ms.flip(0).tolist()


class KeptTimings(dict):
    """A `ShardCache` in memory."""

    def get(self, key):
        return super().get(key.content)

    def put(self, key, costs):
        self[key.content] = costs


def test_a_cache_outlives_its_testbed_but_not_a_change_of_what_is_measured(measured):
    cache, task = KeptTimings(), roomy_task(TABLES)
    bed_of(shard_cache=cache).measure(task, placement(0, 0, 0))
    bed_of(shard_cache=cache, target=H100).measure(task, placement(1, 1, 1))
    assert len(measured) == 1
    bed_of(shard_cache=cache).measure(replace(task, precision="fp16"), placement(0, 0, 0))
    bed_of(shard_cache=cache).measure(replace(task, optimizer="rowwise_adagrad"), placement(0, 0, 0))
    bed_of(shard_cache=cache, batch_size=32).measure(task, placement(0, 0, 0))
    bed_of(shard_cache=cache, repeats=5).measure(task, placement(0, 0, 0))
    assert len(measured) == 5
    bed_of(shard_cache=cache, repeats=4).measure(task, placement(0, 0, 0))
    assert len(measured) == 5


def test_communication_follows_the_largest_sum_of_dims_over_the_links_of_the_target():
    sample = bed_of().measure(roomy_task(TABLES), placement(0, 0, 1))
    seconds = 128 * 4 * BATCH / 2 / PLAIN.link_bytes_per_s + PLAIN.link_latency_s
    assert sample.costs.forward_comm_ms.tolist() == pytest.approx([1e3 * seconds] * 2, rel=1e-5)
    assert sample.costs.backward_comm_ms.tolist() == pytest.approx([1e3 * seconds] * 2, rel=1e-5)


def test_more_devices_than_a_node_has_send_over_the_network():
    where = placement(0, 9, 11, num_devices=12)
    sample = bed_of().measure(roomy_task(TABLES, num_devices=12), where)
    share = 128 * 4 * BATCH / 12
    seconds = max(
        7 * share / PLAIN.link_bytes_per_s + PLAIN.link_latency_s,
        4 * share / (NETWORK_SHARE * PLAIN.network_bytes_per_s) + PLAIN.network_latency_s + 4 * PEER_S,
    )
    assert sample.costs.forward_comm_ms.tolist() == pytest.approx([1e3 * seconds] * 12, rel=1e-5)
    assert (sample.costs.forward_compute_ms > 0).tolist() == [d in (0, 9, 11) for d in range(12)]


def test_shards_without_room_are_a_sample_with_the_bytes_asked_and_free(monkeypatch):
    asked = 500 * 128 * 4 + 2 * 4 * BATCH * 128
    monkeypatch.setattr(Device, "free_bytes", lambda device: asked - 1)
    bed = bed_of()
    sample = bed.measure(roomy_task(TABLES), placement(0, 0, 1))
    assert sample.infeasible == Infeasible(device=1, asked_bytes=asked, free_bytes=asked - 1)
    assert sample.overall_ms == math.inf
    assert sample.costs.phases_ms().abs().sum() == 0
    assert bed.measure(roomy_task(TABLES.select([0, 1])), placement(0, 1)).infeasible is None


def test_every_way_to_shard_is_measured_and_cached(measured):
    bed = bed_of()
    sample = bed.measure(sharded_task(4), sharded(ROW_WISE, COPIES, WHOLE, ON_HOST))
    assert (sample.costs.phases_ms() > 0).all()
    assert torch.equal(sample.costs.forward_comm_ms, sample.costs.forward_comm_ms[:1].expand(4))
    assert (sample.costs.backward_comm_ms > sample.costs.forward_comm_ms).all()
    again = bed.measure(sharded_task(4), sharded(ROW_WISE, COPIES, WHOLE, ON_HOST))
    assert torch.equal(again.costs.phases_ms(), sample.costs.phases_ms())
    assert len(measured) == 4


def test_a_row_block_beyond_the_rows_looked_up_costs_less_than_the_first():
    bed = bed_of(batch_size=4096, lookups=EvenLookups(4096, per_sample=400))  # of the first 8 of 500 rows
    costs = bed.measure(sharded_task(1), sharded(ROW_WISE)).costs
    assert costs.forward_compute_ms[0] > 2 * costs.forward_compute_ms[1:].max()


def test_tables_of_several_precisions_are_measured():
    task = replace(sharded_task(2), precision_of={"table-1": "fp16"})
    assert bed_of().measure(task, Placement.whole(torch.tensor([0, 0]), 4)).costs.forward_compute_ms[0] > 0


def test_a_cache_over_host_memory_is_refused_on_the_cpu():
    task = replace(sharded_task(1), constraints=replace(ANY_SHARDING, caching=True))
    with pytest.raises(ValueError, match="'table-0' is in host memory with a cache"):
        bed_of().measure(task, sharded(replace(WHOLE, cached_share=0.5)))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
def test_on_cuda_a_shard_is_timed_with_events(precision, optimizer):
    task = replace(roomy_task(TABLES), precision=precision, optimizer=optimizer)
    sample = EmulatedTestbed(setup_of(), "cuda", H100).measure(task, placement(0, 0, 1))
    assert sample.clock == "cuda_event"
    assert (sample.costs.phases_ms() > 0).all()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_on_cuda_a_shard_larger_than_the_gpu_is_infeasible_and_the_next_one_is_measured():
    bed = EmulatedTestbed(setup_of(), "cuda", H100)
    sample = bed.measure(roomy_task(tables_of_dims([256], rows=2**32), memory_bytes=2**50), placement(0))
    assert sample.infeasible.asked_bytes > 2**42
    assert bed.measure(roomy_task(TABLES), placement(0, 0, 1)).infeasible is None


def test_an_exchange_alone_takes_as_long_as_in_a_placement():
    bed = bed_of()
    alone = bed.measure_exchange(Exchange(sent_bytes=torch.tensor([128, 16]) * 4 * BATCH))
    seconds = 128 * 4 * BATCH / 2 / V100.link_bytes_per_s + V100.link_latency_s
    assert alone.forward_ms.tolist() == alone.backward_ms.tolist() == pytest.approx([1e3 * seconds] * 2, rel=1e-5)
    assert (alone.host_devices, alone.hardware) == (V100.devices_per_node, bed.hardware)
