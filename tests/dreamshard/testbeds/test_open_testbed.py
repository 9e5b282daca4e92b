from dataclasses import replace

import pytest
import torch

from dreamshard import testbeds
from dreamshard.constraints import ANY_SHARDING
from dreamshard.costs import Exchange
from dreamshard.tables import Placement, TableSharding
from dreamshard.testbeds import TestbedSetup, open_testbed
from dreamshard.testbeds.kinds import ClusterTestbed, EmulatedTestbed
from dreamshard.testbeds.ranks import Layout, Rank, Ranks
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
    assert bed.capacity().memory_bytes == 80 * 2**30
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


def test_ones_own_testbed_needs_only_to_measure_legal_placements():
    bed = open_testbed(f"{OWN}:by_count", SETUP)
    assert (bed.name, bed.links, bed.capacity().memory_bytes) == ("own", None, None)
    task = roomy_task(tables_of_dims([4, 4, 4]))
    assert bed.measure(task, Placement.whole(torch.tensor([0, 0, 1]), 2)).overall_ms == 8
    with pytest.raises(ValueError):
        bed.measure_exchange(Exchange(sent_bytes=torch.tensor([8, 8])))
    rows, bed = Placement((TableSharding("row_wise"),) * 3, 2, 2), open_testbed("simulated", SETUP)
    assert bed.measure(replace(task, constraints=ANY_SHARDING), rows).overall_ms > 0
    with pytest.raises(ValueError):
        bed.measure(task, rows)


def rank(number: int, host: str, gpu: str | None = None) -> Rank:
    return Rank(number, host, "Ceres x8", gpu)


def two_hosts(per_host: int) -> Layout:
    return Layout.of([rank(r, "ab"[r // per_host], "NVIDIA H100") for r in range(2 * per_host)])


def test_ranks_dealt_out_in_turn_become_devices_host_by_host():
    layout = Layout.of([rank(r, "ab"[r % 2]) for r in range(4)])
    assert [rank.number for rank in layout.ranks] == [0, 2, 1, 3]
    assert layout.devices_per_host == layout.part(3).devices_per_host == 2


def test_only_the_last_host_may_have_fewer_ranks():
    layout = Layout.of([rank(0, "small"), *(rank(r, "large") for r in range(1, 4))])
    assert [place.host for place in layout.ranks] == ["large"] * 3 + ["small"]
    with pytest.raises(ValueError):
        Layout.of([rank(r, host) for r, host in enumerate("aaabbc")])


@pytest.mark.parametrize(
    ("num_devices", "per_host", "numbers"),
    [(6, None, (0, 1, 2, 3, 4, 5)), (4, 2, (0, 1, 4, 5)), (2, 1, (0, 4)), (3, 8, (0, 1, 2))],
)
def test_a_task_takes_as_many_ranks_of_each_host_as_it_asks_for(num_devices, per_host, numbers):
    assert tuple(rank.number for rank in two_hosts(4).part(num_devices, per_host).ranks) == numbers
    for too_many in ((9, None), (6, 2), (8, 8)):
        with pytest.raises(ValueError):
            two_hosts(4).part(*too_many)
