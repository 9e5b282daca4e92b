from dataclasses import replace

import pytest
import torch

from dreamshard.costs import Exchange
from dreamshard.placement import Placement
from dreamshard.testbeds.base import MeasurementError, Testbed, TestbedSetup
from dreamshard.testbeds.cluster import ClusterTestbed
from tests.helpers.cluster_testbed import BATCH, TABLES, open_cluster, placement
from tests.helpers.lookups import EvenLookups
from tests.helpers.tables import roomy_task, tables_of_dims
from tests.helpers.testbeds import any_sharding_task, of_every_type

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def cluster():
    bed = open_cluster()
    yield bed
    bed.close()


def test_two_ranks_measure_a_placement(cluster):
    sample = cluster.measure(roomy_task(TABLES), placement(0, 0, 1))
    assert isinstance(cluster, Testbed)
    assert (sample.costs.phases_ms > 0).all()
    assert sample.overall_ms == pytest.approx(sample.costs.device_ms().max().item())
    assert (sample.testbed, sample.clock, sample.repeats, sample.batch_size) == ("cluster", "thread_cpu", 5, BATCH)
    assert sample.versions["torch"] == str(torch.__version__)
    first, second = cluster.measure(roomy_task(TABLES), placement(1, 1, 1)).costs.phases_ms
    assert first[0] == first[3] == 0  # without tables it only takes part in the exchange
    assert min(first[1], second[0]) > 0


def test_an_exchange_is_measured_without_any_table(cluster):
    sample = cluster.measure_exchange(Exchange(sent_bytes=torch.tensor([4, 2**22])))
    assert sample.exchange.devices_per_host == 2
    assert (torch.stack([sample.forward_ms, sample.backward_ms]) > 0).all()
    assert (sample.repeats, sample.clock, sample.hardware) == (5, "wall", cluster.hardware)


def test_exchanges_may_take_more_ranks_but_not_more_memory():
    bed = open_cluster(max_exchange_devices=3)
    try:
        assert bed.measure_exchange(Exchange(sent_bytes=torch.tensor([64, 64, 64]))).forward_ms.shape == (3,)
        assert bed.measure(roomy_task(TABLES), placement(0, 0, 1)).task.num_devices == 2
        with pytest.raises(MeasurementError, check=lambda error: error.__cause__.what.startswith("MemoryError")):
            bed.measure_exchange(Exchange(sent_bytes=torch.tensor([2**42, 2**42])))
    finally:
        bed.close()


SIX = tables_of_dims([16] * 6, rows=500)


def each_way(**first) -> Placement:
    """A table of each sharding type, two ranks on one host."""
    whole, *others = of_every_type(16).values()
    return Placement((replace(whole, **first), *others), 2, 2)


def test_every_sharding_type_is_measured_at_once(cluster):
    sample = cluster.measure(any_sharding_task(SIX), each_way())
    assert (sample.costs.phases_ms > 0).all()
    assert (sample.repeats, sample.task.devices_per_host) == (5, 2)


SEQUENCES = {"tables": replace(SIX, poolings=torch.zeros(6))}


@pytest.mark.parametrize(
    "options", [{"precision": "bf16"}, {"precision": "fp16"}, {"optimizer": "adam"}, SEQUENCES, {}]
)
def test_sharding_types_that_the_cpu_lacks_are_refused_by_name(cluster, options):
    cached = {} if options else {"cached_share": 0.5}
    with pytest.raises(ValueError):
        cluster.measure(any_sharding_task(**{"tables": SIX, **options}), each_way(**cached))


def test_a_shard_larger_than_memory_is_a_sample_not_an_error(cluster):
    large = tables_of_dims([4, 4], rows=2**44)
    sample = cluster.measure(roomy_task(large, memory_bytes=2**60), placement(1, 1))
    assert sample.infeasible.device == 1
    assert sample.infeasible.asked_bytes > 2 * 2**44 * 4 * 4 > sample.infeasible.free_bytes > 0
    assert sample.overall_ms == float("inf")
    assert sample.costs.phases_ms.abs().sum() == 0
    assert cluster.measure(roomy_task(TABLES), placement(0, 0, 1)).infeasible is None


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_on_cuda_a_rank_per_gpu_measures_with_events():
    num_devices = torch.cuda.device_count()
    setup = TestbedSetup(num_devices=num_devices, batch_size=BATCH, lookups=EvenLookups(BATCH), repeats=3)
    bed = ClusterTestbed(setup, "cuda")
    where = Placement.whole(torch.tensor([0, 0, num_devices - 1]), num_devices)
    sample = bed.measure(roomy_task(TABLES, num_devices), where)
    exchange = bed.measure_exchange(Exchange(sent_bytes=torch.full((num_devices,), 2**20)))
    bed.close()
    assert (exchange.clock, exchange.repeats) == ("cuda_event", 3)
    assert (exchange.forward_ms > 0).all()
    assert sample.clock == "cuda_event"
    assert sample.overall_ms > 0
