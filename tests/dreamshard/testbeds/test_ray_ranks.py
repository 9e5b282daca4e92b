import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dreamshard.costs import Exchange
from dreamshard.tables import Placement
from dreamshard.testbeds import MeasurementError, TestbedSetup, open_testbed
from tests.helpers.lookups import FaultyLookups
from tests.helpers.tables import roomy_task, tables_of_dims

pytestmark = [pytest.mark.processes, pytest.mark.long]
ray = pytest.importorskip("ray", reason="needs the extra ray")

BATCH = 64


@pytest.fixture
def two_hosts(monkeypatch) -> Iterator:
    """A Ray cluster of two nodes with one CPU each, on this machine."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")]))
    node = {"num_cpus": 1, "object_store_memory": 2**27}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    cluster.add_node(**node)
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def setup(num_devices: int = 2, **options) -> TestbedSetup:
    usual = {"batch_size": BATCH, "lookups": FaultyLookups(BATCH), "timeout_s": 60.0}
    return TestbedSetup(num_devices=num_devices, **usual, **options)


def measure(bed, *names: str):
    task = roomy_task(tables_of_dims([8] * len(names), rows=500, names=names), len(names))
    return bed.measure(task, Placement.whole(torch.arange(len(names)), len(names)))


def test_actors_on_two_hosts_measure_again_after_one_was_killed(two_hosts):
    for too_many in (setup(3), setup(max_exchange_devices=3)):
        with pytest.raises(ValueError):
            open_testbed("cluster:ray", too_many)

    bed, same = open_testbed("cluster:ray", setup()), open_testbed("cluster:ray:cpu", setup())
    sample = measure(bed, "healthy-0", "healthy-1")
    assert sample.hardware.endswith(f"x{os.cpu_count()}, 2 ranks, 2 hosts")
    assert sample.task.devices_per_host == 1
    assert (sample.costs.phases_ms > 0).all()
    assert (bed.measure_exchange(Exchange(sent_bytes=torch.tensor([2**16, 2**16]))).forward_ms > 0).all()

    begun = time.monotonic()
    with pytest.raises(MeasurementError):
        measure(same, "healthy-0", "kill")
    assert time.monotonic() - begun < 30
    again = open_testbed("cluster:ray", setup())
    assert (measure(again, "healthy-0", "healthy-1").costs.phases_ms > 0).all()
