from dataclasses import replace

import pytest
import torch

from dreamshard import testbeds
from dreamshard.constraints import ANY_SHARDING
from dreamshard.costs import Exchange
from dreamshard.placement import Placement, TableSharding
from dreamshard.testbeds import TestbedSetup, open_testbed
from dreamshard.testbeds.cluster import ClusterTestbed
from dreamshard.testbeds.emulated import EmulatedTestbed
from dreamshard.testbeds.layout import Layout, Rank
from dreamshard.testbeds.ranks import Ranks
from tests.helpers.lookups import EvenLookups
from tests.helpers.tables import roomy_task, tables_of_dims

SETUP = TestbedSetup(num_devices=2, batch_size=64, lookups=EvenLookups(64))


def gpus(monkeypatch, count: int):
    monkeypatch.setattr(testbeds.torch.cuda, "device_count", lambda: count)


@pytest.mark.parametrize(("name", "count"), [("auto", 0), ("cluster", 0), ("cluster:cpu", 0), ("cluster:cpu", 1)])
def test_without_gpus_or_if_asked_a_cluster_has_ranks_on_the_cpu(monkeypatch, name, count):
    gpus(monkeypatch, count)
    bed = open_testbed(name, SETUP)
    assert isinstance(bed, ClusterTestbed)
    assert (bed.device_type, bed.hardware.split(", ")[-1]) == ("cpu", "2 ranks")


def test_with_fewer_gpus_than_devices_a_cluster_is_refused(monkeypatch):
    gpus(monkeypatch, 1)
    with pytest.raises(ValueError):
        open_testbed("cluster", SETUP)


H100 = ("NVIDIA H100", 80 * 2**30)


def launched(*gpus: tuple[str, int] | tuple) -> Ranks:
    """Two hosts with a rank each, which never start."""
    ranks = object.__new__(Ranks)
    ranks.layout = Layout.of([Rank(r, f"host-{r}", "Ceres x8", *gpu) for r, gpu in enumerate(gpus)])
    return ranks


def test_a_cluster_measures_on_the_launchers_ranks():
    for name in ("auto", "cluster", "cluster:cuda"):
        bed = open_testbed(name, SETUP, launched(H100, H100))
        assert (bed.device_type, bed.hardware) == ("cuda", "NVIDIA H100 x2, 2 hosts")
        with pytest.raises(ValueError):
            open_testbed(name, SETUP, launched(H100, ()))
    assert bed.capacity(2).memory_bytes == 80 * 2**30
    assert open_testbed("cluster:cpu", SETUP, launched(H100, H100)).hardware == "Ceres x8, 2 ranks, 2 hosts"
    assert open_testbed("cluster", SETUP, launched((), ())).device_type == "cpu"
    assert open_testbed("simulated", SETUP, launched(H100, H100)).hardware == "simulated rtx2080ti"
    assert open_testbed("simulated:h200", SETUP).hardware == "simulated h200"


def test_auto_emulates_many_devices_on_one_gpu(monkeypatch):
    gpus(monkeypatch, 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    bed = open_testbed("auto", SETUP)
    assert isinstance(bed, EmulatedTestbed)
    assert (bed.device_type, bed.target.name) == ("cuda", "h200")
    assert bed.hardware == "NVIDIA H200 for each device, links of h200"


def test_emulated_without_a_gpu_measures_on_the_cpu_and_says_so(monkeypatch, caplog):
    gpus(monkeypatch, 0)
    bed = open_testbed("emulated:a100", SETUP)
    assert (bed.device_type, bed.target.name) == ("cpu", "a100")
    assert "no GPU" in caplog.text
    with pytest.raises(ValueError):
        open_testbed("emulated:abacus", SETUP)


OWN = "tests.helpers.testbeds"


@pytest.mark.parametrize(
    "name", ["cloud", "cluster:tpu", "auto:x", "", "no_such_module:factory", f"{OWN}:missing", f"{OWN}:not_a_testbed"]
)
def test_a_testbed_that_cannot_be_opened_is_refused(name):
    with pytest.raises(ValueError):
        open_testbed(name, SETUP)


def test_ones_own_testbed_needs_only_to_measure():
    bed = open_testbed(f"{OWN}:by_count", SETUP)
    assert (bed.name, bed.links, bed.capacity(2).memory_bytes) == ("own", None, None)
    task = roomy_task(tables_of_dims([4, 4, 4]))
    assert bed.measure(task, Placement.whole(torch.tensor([0, 0, 1]), 2)).overall_ms == 8
    with pytest.raises(ValueError):
        bed.measure_exchange(Exchange(sent_bytes=torch.tensor([8, 8])))


def test_only_legal_placements_are_measured():
    task, placement = roomy_task(tables_of_dims([8])), Placement((TableSharding("row_wise"),), 2, 2)
    bed = open_testbed("simulated", SETUP)
    assert bed.measure(replace(task, constraints=ANY_SHARDING), placement).overall_ms > 0
    with pytest.raises(ValueError):
        bed.measure(task, placement)
