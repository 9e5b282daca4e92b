"""Real ranks: what they measure, and that one rank's trouble is one error and leaves no process."""

import os
import select
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace

import numpy as np
import psutil
import pytest
import torch

from dreamshard.constraints import Constraints
from dreamshard.exchange_sample import Exchange
from dreamshard.placement import Placement
from dreamshard.sharding import SHARDING_TYPES, ShardedPlacement, TableSharding
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.base import ExchangeTestbed, MeasurementError, ShardingTestbed, Testbed, TestbedSetup
from dreamshard.testbeds.cluster import launch
from dreamshard.testbeds.cluster.layout import Layout
from dreamshard.testbeds.cluster.messages import Hello
from dreamshard.testbeds.cluster.rank_source import LocalRanks
from dreamshard.testbeds.cluster.testbed import ClusterTestbed
from tests.helpers.lookups import EvenLookups, FaultyLookups
from tests.helpers.tables import roomy_task, tables_of_dims

pytestmark = pytest.mark.ranks

BATCH = 64
TABLES = tables_of_dims([4, 8, 128], rows=500)
WITH_FAULTY = tables_of_dims([4, 8], rows=500, names=["healthy", "faulty"])


def open_cluster(
    lookups=None,
    timeout_s: float = 60.0,
    num_devices: int = 2,
    repeats: int = 5,
    max_exchange_devices: int | None = None,
) -> ClusterTestbed:
    setup = TestbedSetup(
        num_devices=num_devices,
        batch_size=BATCH,
        lookups=lookups or EvenLookups(BATCH),
        warmups=1,
        repeats=repeats,
        timeout_s=timeout_s,
        max_exchange_devices=max_exchange_devices,
    )
    return ClusterTestbed(setup, "cpu")


def placement(*device: int, num_devices: int = 2) -> Placement:
    return Placement(torch.tensor(device), num_devices)


def have_ended(pids: list[int]) -> bool:
    """Whether all processes end in time; psutil's own waiting would take their exit codes from the launcher."""
    return all(map(has_ended, pids))


def has_ended(pid: int) -> bool:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], 60)[0])
    finally:
        os.close(process)


def children() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


@pytest.fixture(scope="module")
def cluster():
    bed = open_cluster()
    yield bed
    bed.close()


def test_two_ranks_measure_a_placement(cluster):
    sample = cluster.measure(roomy_task(TABLES), placement(0, 0, 1))
    assert isinstance(cluster, Testbed)
    assert sample.costs.phases_ms().shape == (2, 4)
    assert (sample.costs.phases_ms() > 0).all()
    assert sample.overall_ms == pytest.approx(sample.costs.device_ms().max().item())
    assert (sample.testbed, sample.clock, sample.repeats, sample.batch_size) == ("cluster", "thread_cpu", 5, BATCH)
    assert sample.spread_ms > 0
    assert sample.versions["torch"] == str(torch.__version__)


def test_the_ranks_stay_up_from_one_placement_to_the_next(cluster):
    cluster.measure(roomy_task(TABLES), placement(0, 0, 1))
    pids = cluster.rank_pids()
    cluster.measure(roomy_task(TABLES), placement(1, 0, 1))
    assert cluster.rank_pids() == pids
    assert len(pids) == 2


def test_a_device_without_tables_computes_for_no_time_and_takes_part_in_the_exchange(cluster):
    costs = cluster.measure(roomy_task(TABLES), placement(1, 1, 1)).costs
    assert costs.forward_compute_ms[0] == costs.backward_compute_ms[0] == 0
    assert costs.forward_comm_ms[0] > 0
    assert costs.forward_compute_ms[1] > 0


def test_more_work_takes_more_time(cluster):
    large = tables_of_dims([128, 4], rows=500)
    costs = cluster.measure(roomy_task(large), placement(0, 1)).costs
    assert costs.forward_compute_ms[0] + costs.backward_compute_ms[0] > costs.forward_compute_ms[1]


def test_an_exchange_is_measured_without_any_table(cluster):
    assert isinstance(cluster, ExchangeTestbed)
    sample = cluster.measure_exchange(Exchange(sent_bytes=torch.tensor([4, 2**22])))
    assert sample.exchange.devices_per_host == 2
    assert sample.forward_ms.shape == sample.backward_ms.shape == (2,)
    assert (sample.forward_ms > 0).all()
    assert (sample.repeats, sample.clock, sample.hardware) == (5, "wall", cluster.hardware)


def test_more_bytes_take_longer(cluster):
    small, large = (
        cluster.measure_exchange(Exchange(sent_bytes=torch.tensor([num_bytes] * 2))) for num_bytes in (2**10, 2**26)
    )
    assert large.forward_ms.max() > 3 * small.forward_ms.max()
    assert large.backward_ms.max() > 3 * small.backward_ms.max()


def test_exchanges_may_take_more_ranks_than_a_task():
    bed = open_cluster(max_exchange_devices=3)
    try:
        assert bed.measure_exchange(Exchange(sent_bytes=torch.tensor([64, 64, 64]))).forward_ms.shape == (3,)
        assert bed.measure(roomy_task(TABLES), placement(0, 0, 1)).task.num_devices == 2
    finally:
        bed.close()


def test_an_exchange_that_no_rank_has_memory_for_is_refused_before_it_takes_any(cluster):
    with pytest.raises(
        MeasurementError, match=r"DoesNotFitError: \d+ bytes are asked for on a device that has \d+ free"
    ):
        cluster.measure_exchange(Exchange(sent_bytes=torch.tensor([2**42, 2**42])))


def test_a_sample_says_how_many_devices_share_a_host(cluster):
    assert cluster.measure(roomy_task(TABLES), placement(0, 0, 1)).task.devices_per_host == 2


def every_way(dim: int) -> tuple[TableSharding, ...]:
    """A table of each way to shard, two ranks on one host."""
    columns, half = ((0, dim),), ((0, dim // 2), (dim // 2, dim))
    return (
        TableSharding(sharding_type="table_wise", columns=columns, where=(1,)),
        TableSharding(sharding_type="column_wise", columns=half, where=(0, 1)),
        TableSharding(sharding_type="row_wise", columns=columns),
        TableSharding(sharding_type="table_row_wise", columns=columns, where=(0,)),
        TableSharding(sharding_type="grid_shard", columns=half, where=(0, 0)),
        TableSharding(sharding_type="data_parallel", columns=columns),
    )


def any_sharding_task(**options) -> PlacementTask:
    constraints = Constraints(sharding_types=SHARDING_TYPES, caching=True)
    return replace(roomy_task(tables_of_dims([16] * 6, rows=500)), constraints=constraints, **options)


def test_every_way_to_shard_is_measured_at_once(cluster):
    sample = cluster.measure_sharding(any_sharding_task(), ShardedPlacement(every_way(16), 2, 2))
    assert isinstance(cluster, ShardingTestbed)
    assert (sample.costs.phases_ms() > 0).all()
    assert (sample.index_ms > 0).all()
    assert sample.overall_ms == pytest.approx(sample.costs.device_ms().max().item())
    assert (sample.clock, sample.repeats, sample.task.devices_per_host) == ("thread_cpu", 5, 2)


def test_tables_of_several_precisions_are_measured(cluster):
    task = replace(roomy_task(TABLES), precision_of={"table-0": "fp16"})
    sample = cluster.measure(task, placement(0, 0, 1))
    assert (sample.costs.phases_ms() > 0).all()
    assert sample.task.precision_of == {"table-0": "fp16"}


@pytest.mark.parametrize(
    ("task", "sharding", "message"),
    [
        (any_sharding_task(precision="bf16"), 0, "fbgemm trains no bf16 tables with sgd on cpu"),
        (any_sharding_task(optimizer="adam"), 0, "fbgemm trains no fp32 tables with adam on cpu"),
        (any_sharding_task(precision="fp16"), 0, "'table-5 copy 0' is data-parallel in fp16 with sgd"),
        (any_sharding_task(), 0.5, "'table-0' is in host memory with a cache on the device, which only GPUs have"),
    ],
)
def test_what_ranks_on_the_cpu_cannot_shard_is_refused_by_name(cluster, task, sharding, message):
    first, *others = every_way(16)
    cached = replace(first, cached_share=sharding or None)
    with pytest.raises(ValueError, match=message):
        cluster.measure_sharding(task, ShardedPlacement((cached, *others), 2, 2))


def test_a_rank_that_fails_while_it_reads_lookups_of_row_blocks_is_one_error():
    bed = open_cluster(FaultyLookups(BATCH, fault="raise"))
    task = replace(roomy_task(WITH_FAULTY), constraints=Constraints(sharding_types=SHARDING_TYPES))
    shardings = (
        TableSharding(sharding_type="row_wise", columns=((0, 4),)),
        TableSharding(sharding_type="table_wise", columns=((0, 8),), where=(1,)),
    )
    with pytest.raises(MeasurementError, match=r"rank 1 of 2 while reading lookups, with 2 tables on it .*on fire"):
        bed.measure_sharding(task, ShardedPlacement(shardings, 2, 2))
    assert bed.rank_pids() == []


def test_devices_on_several_hosts_are_not_measured_on_one(cluster):
    task = replace(roomy_task(TABLES), devices_per_host=1)
    with pytest.raises(ValueError, match=r"2 devices at 1 per host are asked for, but the ranks .* all on this host"):
        cluster.measure(task, placement(0, 0, 1))
    with pytest.raises(ValueError, match="an all-to-all of 3 devices cannot be measured on the 2"):
        cluster.measure_exchange(Exchange(sent_bytes=torch.tensor([4, 4, 4])))


def test_exchanges_take_all_ranks_of_a_launcher_however_few_devices_tasks_have(monkeypatch):
    class TwoHosts(LocalRanks):
        layout = Layout.of(Hello(r, pid=r, host="ab"[r // 2], processor="Ceres x8", gpu=None) for r in range(4))

    setup = TestbedSetup(num_devices=2, batch_size=BATCH, lookups=EvenLookups(BATCH))
    bed = ClusterTestbed(setup, "cpu", TwoHosts())
    monkeypatch.setattr(bed, "_answers", lambda members, jobs, name: [np.ones((3, 2)) for _ in members])
    sample = bed.measure_exchange(Exchange(sent_bytes=torch.full((4,), 2**20)))
    assert (sample.exchange.num_devices, sample.exchange.devices_per_host) == (4, 2)
    with pytest.raises(ValueError, match="an all-to-all of 5 devices cannot be measured on the 4"):
        bed.measure_exchange(Exchange(sent_bytes=torch.full((5,), 2**20)))


def test_a_placement_that_is_not_legal_is_refused_before_it_reaches_a_rank(cluster):
    tables = tables_of_dims([128, 128], rows=500)
    with pytest.raises(ValueError, match="run out of memory"):
        cluster.measure(roomy_task(tables, memory_bytes=500 * 128 * 4), placement(0, 0))


def test_a_task_with_more_devices_than_the_testbed_is_refused(cluster):
    with pytest.raises(ValueError, match="3 devices, but this testbed has 2"):
        cluster.measure(roomy_task(TABLES, num_devices=3), placement(0, 1, 2, num_devices=3))


def test_a_rank_that_raises_is_one_error_and_the_next_measurement_starts_new_ranks():
    bed = open_cluster(FaultyLookups(BATCH, fault="raise"))
    bed.measure(roomy_task(TABLES), placement(0, 0, 1))
    pids = bed.rank_pids()
    message = r"rank 1 of 2 while reading lookups, with 1 tables on it \(faulty\): OSError: the disk is on fire"
    with pytest.raises(MeasurementError, match=message) as caught:
        bed.measure(roomy_task(WITH_FAULTY), placement(0, 1))
    assert "lookups.py" in caught.value.__notes__[0]
    assert have_ended(pids)
    assert bed.rank_pids() == []
    assert bed.measure(roomy_task(TABLES), placement(0, 0, 1)).overall_ms > 0
    assert set(bed.rank_pids()).isdisjoint(pids)
    pids = bed.rank_pids()
    bed.close()
    assert have_ended(pids)


def test_a_rank_that_is_killed_is_one_error_with_its_signal():
    before = children()
    bed = open_cluster(FaultyLookups(BATCH, fault="kill"))
    with pytest.raises(
        MeasurementError, match=r"measuring task failed on rank 0 of 2 while reading lookups.*killed by SIGKILL"
    ):
        bed.measure(roomy_task(WITH_FAULTY), placement(1, 0))
    assert bed.rank_pids() == []
    assert children() == before


def test_a_rank_that_is_killed_between_measurements_is_told_apart_from_the_ranks_that_end_with_it():
    bed = open_cluster()
    bed.measure(roomy_task(TABLES), placement(0, 0, 1))
    pids = bed.rank_pids()
    os.kill(pids[1], signal.SIGKILL)
    assert have_ended(pids)
    with pytest.raises(MeasurementError, match=r"rank 1 of 2 while waiting for work.*killed by SIGKILL"):
        bed.measure(roomy_task(TABLES), placement(0, 0, 1))
    assert bed.measure(roomy_task(TABLES), placement(0, 0, 1)).overall_ms > 0
    bed.close()


def test_a_rank_that_hangs_is_one_error_with_where_it_hangs():
    before = children()
    bed = open_cluster(FaultyLookups(BATCH, fault="hang"), timeout_s=1.0)
    with pytest.raises(MeasurementError, match=r"rank 1 of 2 while reading lookups.*no answer within 1 s") as caught:
        bed.measure(roomy_task(WITH_FAULTY), placement(0, 1))
    assert "lookups.py" in caught.value.__notes__[0]
    assert children() == before


def test_a_rank_that_hangs_while_it_starts_is_ended_too(monkeypatch):
    monkeypatch.setattr(launch, "START_TIMEOUT_S", 3.0)
    before, stopped = children(), []

    def stop_rank_0() -> None:
        while not stopped:
            for pid in children() - before:
                with suppress(psutil.Error):
                    process = psutil.Process(pid)
                    if "dreamshard.testbeds.cluster.rank" in process.cmdline() and process.environ()["RANK"] == "0":
                        process.suspend()
                        stopped.append(pid)

    stopping = threading.Thread(target=stop_rank_0)
    stopping.start()
    bed = open_cluster()
    with pytest.raises(MeasurementError, match=r"rank \d of 2 while starting"):
        bed.measure(roomy_task(TABLES), placement(0, 0, 1))
    stopping.join()
    assert have_ended(stopped)
    assert children() == before


def test_a_shard_larger_than_memory_is_a_sample_that_says_so_and_the_ranks_stay_up(cluster):
    large = tables_of_dims([4, 4], rows=2**44)
    pids = cluster.rank_pids()
    sample = cluster.measure(roomy_task(large, memory_bytes=2**60), placement(1, 1))
    assert sample.infeasible.device == 1
    assert sample.infeasible.asked_bytes > 2 * 2**44 * 4 * 4 > sample.infeasible.free_bytes > 0
    assert sample.overall_ms == float("inf")
    assert sample.costs.phases_ms().abs().sum() == 0
    assert cluster.measure(roomy_task(TABLES), placement(0, 0, 1)).infeasible is None
    assert not pids or cluster.rank_pids() == pids


def test_lookups_outside_the_table_are_one_error():
    bed = open_cluster(EvenLookups(BATCH, rows=50))
    with pytest.raises(
        MeasurementError, match=r"rank 1 of 2 .*table table-0 has index 49 outside the table of 20 rows"
    ):
        bed.measure(roomy_task(tables_of_dims([4, 4], rows=20)), placement(1, 1))
    bed.close()


def test_a_source_of_lookups_that_no_rank_can_get_is_refused():
    with pytest.raises(ValueError, match="cannot be sent to the ranks"):
        open_cluster(lambda name: EvenLookups(BATCH)(name))


def test_ranks_end_and_tidy_up_when_the_process_that_started_them_is_killed(tmp_path):
    script = (
        "import tests.dreamshard.testbeds.cluster.test_testbed as t\n"
        "bed = t.open_cluster(t.FaultyLookups(t.BATCH, fault='hang'));"
        "bed.measure(t.roomy_task(t.TABLES), t.placement(0, 0, 1)); print(*bed.rank_pids(), flush=True);"
        "bed.measure(t.roomy_task(t.WITH_FAULTY), t.placement(0, 1))"
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


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_on_cuda_a_rank_per_gpu_measures_with_events():
    num_devices = torch.cuda.device_count()
    setup = TestbedSetup(num_devices=num_devices, batch_size=BATCH, lookups=EvenLookups(BATCH), repeats=3)
    bed = ClusterTestbed(setup, "cuda")
    where = Placement(torch.tensor([0, 0, num_devices - 1]), num_devices)
    sample = bed.measure(roomy_task(TABLES, num_devices), where)
    exchange = bed.measure_exchange(Exchange(sent_bytes=torch.full((num_devices,), 2**20)))
    bed.close()
    assert (exchange.clock, exchange.repeats) == ("cuda_event", 3)
    assert (exchange.forward_ms > 0).all()
    assert sample.clock == "cuda_event"
    assert sample.overall_ms > 0
