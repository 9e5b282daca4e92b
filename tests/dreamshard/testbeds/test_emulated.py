"""One device standing for many, on the CPU's kernels."""

import math
from dataclasses import replace

import pytest
import torch

from dreamshard.costs import Exchange, Infeasible
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.hardware.links import NETWORK_SHARE, PEER_S
from dreamshard.placement import Placement
from dreamshard.testbeds.base import Testbed, TestbedSetup
from dreamshard.testbeds.emulated import EmulatedTestbed
from dreamshard.testbeds.shard_cache import MemoryShardCache
from dreamshard.testbeds.shard_runner import ShardRunner, asked_bytes
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
    """Names of the tables of every shard that is measured, in order."""
    names = []
    real = ShardRunner.measure

    def spy(runner, tables, precision, optimizer):
        names.append(tables.names)
        return real(runner, tables, precision, optimizer)

    monkeypatch.setattr(ShardRunner, "measure", spy)
    return names


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


def test_a_cache_outlives_its_testbed_but_not_a_change_of_what_is_measured(measured):
    cache, task = MemoryShardCache(), roomy_task(TABLES)
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


def test_shards_lie_in_one_arena_that_is_filled_only_when_it_grows():
    runner = ShardRunner(setup_of(), torch.device("cpu"))
    large = runner.build(TABLES, "fp32", "sgd").func.weights_host
    small = runner.build(TABLES.select([0]), "fp16", "sgd").func.weights_host
    assert small.data_ptr() == large.data_ptr()
    assert small.isfinite().all()


def test_a_shard_over_the_limit_is_a_sample_marked_infeasible_with_the_bytes_asked_and_free():
    task = roomy_task(TABLES)
    asked = asked_bytes(TABLES.select([2]), "fp32", "sgd", BATCH, 2 * BATCH)
    assert asked == 500 * 128 * 4 + 2 * 4 * BATCH * 128 + 4 * (2 * BATCH + BATCH)
    bed = bed_of(memory_limit_bytes=asked - 1)
    sample = bed.measure(task, placement(0, 0, 1))
    assert sample.infeasible == Infeasible(device=1, asked_bytes=asked, free_bytes=asked - 1)
    assert sample.overall_ms == math.inf
    assert sample.costs.phases_ms().shape == (2, 4)
    assert bed.measure(roomy_task(TABLES.select([0, 1])), placement(0, 1)).infeasible is None


def test_a_device_that_runs_out_of_memory_half_way_is_infeasible_too(monkeypatch):
    def runs_out(*arguments, **options):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("dreamshard.testbeds.shard_runner.build_operator", runs_out)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    sample = bed_of().measure(roomy_task(TABLES), placement(0, 0, 0))
    assert sample.infeasible.device == 0
    assert sample.infeasible.asked_bytes > 0


def test_without_a_gpu_cuda_is_refused():
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(ValueError, match="no GPU that torch can use"):
        EmulatedTestbed(setup_of(), "cuda", H100)


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
