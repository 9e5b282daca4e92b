import json
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from dreamshard.hardware import links
from dreamshard.hardware.accelerator import MEASURED_LINKS, PRESETS, hardware, preset_of
from dreamshard.hardware.links import NETWORK_SHARE, PEER_S, collective_s, collective_times, collectives_s
from dreamshard.tables import Placement
from dreamshard.testbeds import TestbedSetup, open_testbed
from tests.helpers.tables import pool_of, roomy_task


@pytest.fixture
def read(tmp_path):
    """Write a hardware file and read it."""

    def written(text, name="my_cluster.yaml"):
        path = tmp_path / name
        path.write_text(text)
        return hardware(str(path))

    return written


def test_a_preset_has_its_name_and_says_how_its_link_is_modelled():
    assert hardware("h100") is hardware("H100") is H100
    assert all(spec.link for spec in PRESETS.values())
    with pytest.raises(ValueError):
        hardware("tpu")
    with pytest.raises(ValueError):
        hardware("gone.yaml")


def test_a_drivers_name_finds_its_preset():
    names = {"A100-SXM4-80GB": "a100", "A100-SXM4-40GB": "a100-40gb", "GB200": "gb200", "L40S": "l40s"}
    names |= {"RTX PRO 6000 Blackwell Server Edition": "rtx_pro_6000", "GeForce RTX 2080 Ti": "rtx2080ti"}
    assert {name: preset_of(f"NVIDIA {name}").name for name in names} == names
    assert preset_of("Tesla T4").name == "t4"


def test_a_file_overrides_a_preset_and_names_other_hardware(read):
    text = "base: h100\nmemory: 94 GB\ndevices_per_host: 4\nnetwork_bandwidth: 200 Gbit/s\n"
    spec = read(text)
    assert spec.name.startswith("my_cluster-")
    assert spec == replace(H100, memory_bytes=94 * 10**9, devices_per_host=4, network_bytes_per_s=25e9, name=spec.name)
    others = [read(text.replace("94", "96")), read(text + "host_bandwidth: 32 GB/s\n")]
    assert others[1].host_bytes_per_s == 32e9
    assert len({gpu.name for gpu in (spec, *others)}) == 3


def test_a_file_may_give_every_figure_except_the_host_link(read):
    figures = yaml.safe_load(Path("dreamshard/hardware/presets/h100.yaml").read_text()) | {"link": "nvlink"}
    spec = read(json.dumps(figures | {"name": "mine"}), "any.json")
    assert spec == replace(H100, name=spec.name, link="nvlink")
    assert (spec.name[:5], spec.memory_bytes_per_s, spec.cache_bytes) == ("mine-", 3.35e12, 50 * 2**20)
    del figures["host_bandwidth"]
    assert read(json.dumps(figures), "any.json").host_bytes_per_s is None


@pytest.mark.parametrize(
    "text",
    [
        "base: h100\nmemroy: 80 GB\n",
        "base: h100\nmemory: 80\n",
        "base: h100\nlink_bandwidth: 0 GB/s\n",
        f"base: h100\nmemory: '{'9' * 5000} 40 GiB'\n",
        "base: h100\ndevices_per_host: 8 GB\n",
        "base: h100\nlink: carrier pigeon\n",
        "base: h100\nlink_latency: 16 us\n",
        "base: tpu\n",
        "memory: 80 GB\n",
    ],
)
def test_a_wrong_file_is_one_sentence_that_names_it(tmp_path, read, text):
    with pytest.raises(ValueError) as error:
        read(text)
    assert str(tmp_path / "my_cluster.yaml") in str(error.value)
    assert "\n" not in str(error.value)


def test_ones_own_hardware_can_be_simulated(tmp_path, read):
    name = read("base: h100\nlink_bandwidth: 4.5 GB/s\n").name
    setup = TestbedSetup(num_devices=4, batch_size=65_536, lookups=lambda name: pytest.fail(name))
    task, placement = roomy_task(pool_of(12), 4), Placement.whole(torch.arange(12) % 4, 4)
    slow, fast = (
        open_testbed(f"simulated:{on}", setup).measure(task, placement) for on in (tmp_path / "my_cluster.yaml", "h100")
    )
    assert slow.hardware == f"simulated {name}"
    assert float(slow.costs.phases_ms[..., 1].max()) > 10 * float(fast.costs.phases_ms[..., 1].max())


A100, H100, L40S, RTX2080TI, V100 = (PRESETS[name] for name in ("a100", "h100", "l40s", "rtx2080ti", "v100"))
PLAIN = replace(A100, link=None)
BATCH = 4096
TIMES_US = [2, 8], [1024, 2**20], [[10.0, 100.0], [20.0, 400.0]]


def seconds(sent_bytes: float, num_devices: int, spec, devices_per_host: int | None = None) -> float:
    return ring(sent_bytes, num_devices, spec, devices_per_host or spec.devices_per_host, "all_to_all")


def ring(num_bytes: float, num_devices: int, spec, per_host: int, operation: str) -> float:
    return float(collective_s(torch.tensor(num_bytes, dtype=torch.float64), num_devices, spec, per_host, operation))


def test_measured_links_take_what_was_measured_at_most_bytes():
    for gpu in chain.from_iterable(MEASURED_LINKS.values()):
        counts, sizes, times_us = collective_times(gpu)
        for num_gpus, by_bytes in zip(counts.tolist(), times_us, strict=True):
            assert seconds(float(sizes[-1]), num_gpus, PRESETS[gpu]) == pytest.approx(1e-6 * by_bytes[-1])
    for operation in ("reduce_scatter", "all_gather", "all_reduce"):
        time_us = collective_times("a100", operation).times_us[-1, -1]
        assert ring(2.0**29, 8, A100, 8, operation) == pytest.approx(1e-6 * time_us)


@pytest.mark.parametrize("spec", [*PRESETS.values(), PLAIN], ids=[*PRESETS, "plain"])
@pytest.mark.parametrize("num_devices", [2, 3, 8, 12, 72, 1024])
def test_more_bytes_of_the_largest_sender_never_take_less(spec, num_devices):
    sizes = torch.logspace(0, 10, 200, dtype=torch.float64)  # [B]
    seconds_taken = collective_s(sizes, num_devices, spec, spec.devices_per_host)
    assert (seconds_taken.diff() >= 0).all()
    assert seconds_taken[-1] > 10 * seconds_taken[0]


@pytest.mark.parametrize(
    ("operation", "num_devices", "sent_share"),
    [("all_to_all", 2, 0.5), ("reduce_scatter", 4, 0.75), ("all_reduce", 4, 1.5)],
)
def test_a_link_by_its_bandwidth_moves_all_but_a_devices_own_share(operation, num_devices, sent_share):
    expected_s = sent_share * 1e9 / PLAIN.link_bytes_per_s + PLAIN.link_latency_s
    assert ring(1e9, num_devices, PLAIN, 8, operation) == pytest.approx(expected_s)


@pytest.mark.parametrize(("spec", "measured"), [(V100, A100), (RTX2080TI, L40S)])
def test_a_link_without_measurements_never_reaches_its_datasheet(spec, measured):
    share, known = (1e9 * 7 / 8 / seconds(1e9, 8, gpu) / gpu.link_bytes_per_s for gpu in (spec, measured))
    assert 0.3 * known < share < 3 * known < 3


def test_bytes_through_host_memory_wait_for_those_of_all_devices():
    spec = replace(PLAIN, shared_bytes_per_s=1e9)
    most, mean = (torch.tensor(size, dtype=torch.float64) for size in (1e9, 4e8))
    seconds_taken = float(collective_s(most, 4, spec, 8, mean_bytes=mean))
    assert seconds_taken == pytest.approx(seconds(1e9, 4, PLAIN) + 4 * 4e8 * 3 / 4 / 1e9)


def test_devices_of_two_nodes_exchange_over_the_slower_network():
    assert seconds(1e6, 16, A100) > 2 * seconds(1e6, 16, replace(A100, devices_per_host=16))
    assert seconds(1e6, 8, A100, devices_per_host=4) == seconds(1e6, 8, replace(A100, devices_per_host=4))
    far_s = 1e9 * 56 / 64 / (NETWORK_SHARE * A100.network_bytes_per_s) + A100.network_latency_s + 56 * PEER_S
    assert seconds(1e9, 64, A100) == pytest.approx(far_s)
    four_adapters = replace(A100, network_bytes_per_s=4 * 25e9 / 8)  # 200 Gb/s each, as in nccl issue 1138
    assert seconds(4 * 2**30, 16, four_adapters) == pytest.approx(0.203, rel=0.15)


def test_tables_on_one_host_are_summed_there_and_cross_over():
    loads = torch.tensor([0, 0, 0, 64], dtype=torch.float64)  # 64 dims of tables on one host
    alone, both = (collectives_s(loads, BATCH, num_devices, PLAIN, 8, 8, loads[0])[0] for num_devices in (8, 16))
    sums_s = 64 * 4 * BATCH * 7 / 8 / PLAIN.link_bytes_per_s + PLAIN.link_latency_s
    across_s = 64 * 4 * BATCH / 8 / 2 / (NETWORK_SHARE * PLAIN.network_bytes_per_s) + PLAIN.network_latency_s + PEER_S
    assert float(alone) == pytest.approx(sums_s)
    assert float(both) == pytest.approx(sums_s + across_s)


@pytest.mark.parametrize(
    ("times_us", "num_gpus", "sent_bytes", "expected_us"),
    [
        (TIMES_US, 4, 2**20, 200),  # between two numbers, their mean in logarithms
        (TIMES_US, 2, 0, 10),  # as long as the smallest size
        (TIMES_US, 2, 10 * 2**20, 1000),  # in proportion beyond the largest
        (TIMES_US, 32, 2**20, 400 * (31 / 32) / (7 / 8) + 10),  # latency by doubling, the rest by the share that leaves
        (([2], [1, 2, 4], [[8.0, 2.0, 16.0]]), 2, 1, 4),  # times that fall are averaged
    ],
)
def test_a_curve_goes_through_times_and_beyond(times_us, num_gpus, sent_bytes, expected_us):
    found_s = links.curve_s(
        links.fit_link_curve(*map(np.array, times_us), num_gpus), torch.tensor(float(sent_bytes), dtype=torch.float64)
    )
    assert float(found_s) == pytest.approx(1e-6 * expected_us)
