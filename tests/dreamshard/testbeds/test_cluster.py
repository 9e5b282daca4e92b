import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace

import psutil
import pytest
import torch

from dreamshard.costs import Exchange
from dreamshard.tables import Placement
from dreamshard.testbeds.base import MeasurementError, Testbed, TestbedSetup
from dreamshard.testbeds.kinds import ClusterTestbed
from tests.helpers.lookups import BATCH, TABLES, EvenLookups, FaultyLookups
from tests.helpers.tables import roomy_task, tables_of_dims
from tests.helpers.testbeds import any_sharding_task, of_every_type, on_two

pytestmark = pytest.mark.processes


def open_cluster(lookups=None, **options) -> ClusterTestbed:
    usual = {"num_devices": 2, "batch_size": BATCH, "lookups": lookups or EvenLookups(BATCH)}
    return ClusterTestbed(TestbedSetup(**{**usual, "timeout_s": 60.0, **options}), "cpu")


@pytest.fixture(scope="module")
def cluster():
    bed = open_cluster()
    yield bed
    bed.close()


def test_two_ranks_measure_a_placement(cluster):
    sample = cluster.measure(roomy_task(TABLES), on_two(0, 0, 1))
    assert isinstance(cluster, Testbed)
    assert (sample.costs.phases_ms > 0).all()
    assert sample.overall_ms == pytest.approx(sample.costs.device_ms().max().item())
    assert (sample.testbed, sample.clock, sample.repeats, sample.batch_size) == ("cluster", "thread_cpu", 1, BATCH)
    assert sample.versions["torch"] == str(torch.__version__)
    first, second = cluster.measure(roomy_task(TABLES), on_two(1, 1, 1)).costs.phases_ms
    assert first[0] == first[3] == 0  # without tables it only takes part in the exchange
    assert min(first[1], second[0]) > 0


def test_an_exchange_is_measured_without_any_table(cluster):
    sample = cluster.measure_exchange(Exchange(sent_bytes=torch.tensor([4, 2**22])))
    assert sample.exchange.devices_per_host == 2
    assert (torch.stack([sample.forward_ms, sample.backward_ms]) > 0).all()
    assert (sample.repeats, sample.clock, sample.hardware) == (1, "wall", cluster.hardware)


def test_exchanges_may_take_more_ranks_but_not_more_memory():
    bed = open_cluster(max_exchange_devices=3)
    try:
        assert bed.measure_exchange(Exchange(sent_bytes=torch.tensor([64, 64, 64]))).forward_ms.shape == (3,)
        assert bed.measure(roomy_task(TABLES), on_two(0, 0, 1)).task.num_devices == 2
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
    assert (sample.repeats, sample.task.devices_per_host) == (1, 2)


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
    sample = cluster.measure(roomy_task(large, memory_bytes=2**60), on_two(1, 1))
    assert sample.infeasible.device == 1
    assert sample.infeasible.asked_bytes > 2 * 2**44 * 4 * 4 > sample.infeasible.free_bytes > 0
    assert sample.overall_ms == float("inf")
    assert sample.costs.phases_ms.abs().sum() == 0
    assert cluster.measure(roomy_task(TABLES), on_two(0, 0, 1)).infeasible is None


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_on_cuda_a_rank_per_gpu_measures_with_events():
    num_devices = torch.cuda.device_count()
    setup = TestbedSetup(num_devices=num_devices, batch_size=BATCH, lookups=EvenLookups(BATCH))
    bed = ClusterTestbed(setup, "cuda")
    where = Placement.whole(torch.tensor([0, 0, num_devices - 1]), num_devices)
    sample = bed.measure(roomy_task(TABLES, num_devices), where)
    exchange = bed.measure_exchange(Exchange(sent_bytes=torch.full((num_devices,), 2**20)))
    bed.close()
    assert (exchange.clock, exchange.repeats) == ("cuda_event", 1)
    assert (exchange.forward_ms > 0).all()
    assert sample.clock == "cuda_event"
    assert sample.overall_ms > 0


def with_fault(fault: str):
    """Two tables, the second of which `FaultyLookups` does not give."""
    return roomy_task(tables_of_dims([4, 8], rows=500, names=["healthy", fault]))


def pids_of(bed) -> list[int]:
    """Of its ranks, in the order of devices."""
    return [process.pid for process in bed.ranks.launcher._processes]


def have_ended(pids: list[int]) -> bool:
    """Whether all processes end in time; psutil's own waiting would take their exit codes from the launcher."""
    for pid in pids:
        with suppress(ProcessLookupError), os.fdopen(os.pidfd_open(pid)) as process:
            if not select.select([process], [], [], 60)[0]:
                return False
    return True


def children() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


@pytest.mark.parametrize("fault", ["raise", "kill", "hang", "outside"])
def test_a_failing_rank_is_one_error_and_leaves_no_process(fault):
    bed = open_cluster(FaultyLookups(BATCH), timeout_s=10.0)
    bed.measure(roomy_task(TABLES), on_two(0, 0, 1))
    pids, begun = pids_of(bed), time.monotonic()
    others = children() - set(pids)  # such as multiprocessing's tracker of resources
    with pytest.raises(MeasurementError) as caught:
        bed.measure(with_fault(fault), on_two(0, 1))
    assert time.monotonic() - begun < 30
    notes = getattr(caught.value, "__notes__", [])  # none of a killed rank, perhaps one of a rank that lost it
    assert any("lookups.py" in note for note in notes) == (fault != "kill")
    assert have_ended(pids)
    with pytest.raises(MeasurementError):
        bed.measure(roomy_task(TABLES), on_two(0, 0, 1))
    bed.close()
    assert children() <= others


def test_a_rank_that_dies_between_measurements_fails_the_next():
    bed = open_cluster()
    bed.measure(roomy_task(TABLES), on_two(0, 0, 1))
    os.kill(pids_of(bed)[1], signal.SIGKILL)
    assert have_ended(pids_of(bed)[1:])
    with pytest.raises(MeasurementError):
        bed.measure(roomy_task(TABLES), on_two(0, 0, 1))


def test_ranks_end_and_tidy_up_when_their_driver_is_killed(tmp_path):
    script = (
        "import tests.dreamshard.testbeds.test_cluster as t\n"
        "bed = t.open_cluster(t.FaultyLookups(t.BATCH));"
        "bed.measure(t.roomy_task(t.TABLES), t.on_two(0, 0, 1)); print(*t.pids_of(bed), flush=True);"
        "bed.measure(t.with_fault('hang'), t.on_two(0, 1))"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert have_ended(pids)
    assert not list(tmp_path.iterdir())
