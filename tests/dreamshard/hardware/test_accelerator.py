import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from dreamshard.hardware.accelerator import PRESETS, hardware, preset_of
from dreamshard.placement import Placement
from dreamshard.testbeds import TestbedSetup, open_testbed
from tests.helpers.tables import pool_of, roomy_task

H100 = PRESETS["h100"]


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
    assert all(spec.link_curve for spec in PRESETS.values())
    with pytest.raises(ValueError):
        hardware("tpu")
    with pytest.raises(ValueError):
        hardware("gone.yaml")


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("Tesla T4", "t4"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx_pro_6000"),
        ("NVIDIA GeForce RTX 2080 Ti", "rtx2080ti"),
    ],
)
def test_a_drivers_name_finds_its_preset(device, name):
    assert preset_of(device).name == name


def test_a_file_overrides_a_preset_and_names_other_hardware(read):
    text = "base: h100\nmemory: 94 GB\ndevices_per_host: 4\nnetwork_bandwidth: 200 Gbit/s\n"
    spec = read(text)
    assert spec.name.startswith("my_cluster-")
    assert spec == replace(H100, memory_bytes=94 * 10**9, devices_per_node=4, network_bytes_per_s=25e9, name=spec.name)
    others = [read(text.replace("94", "96")), read(text + "host_bandwidth: 32 GB/s\n")]
    assert others[1].host_bytes_per_s == 32e9
    assert len({each.name for each in (spec, *others)}) == 3


def test_a_file_may_give_every_figure_except_the_host_link(read):
    figures = yaml.safe_load(Path("dreamshard/hardware/presets/h100.yaml").read_text()) | {"link": "nvlink"}
    spec = read(json.dumps(figures | {"name": "mine"}), "any.json")
    assert spec == replace(H100, name=spec.name, link_curve="nvlink")
    assert (spec.name[:5], spec.memory_bytes_per_s, spec.l2_bytes) == ("mine-", 3.35e12, 50 * 2**20)
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
        "- 80 GB\n",
        "base: [h100\n",
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
