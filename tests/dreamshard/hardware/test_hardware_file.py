"""Hardware of one's own."""

import json
from dataclasses import replace

import pytest
import torch

from dreamshard.hardware.accelerator import EXAMPLES, PRESETS, hardware, read_hardware
from dreamshard.placement import Placement
from dreamshard.testbeds import TestbedSetup, open_testbed
from tests.helpers.tables import pool_of, roomy_task

H100 = PRESETS["h100"]

COMPLETE = EXAMPLES


def written(folder, text, name="my_cluster.yaml"):
    path = folder / name
    path.write_text(text)
    return path


def test_a_preset_goes_by_its_name():
    assert hardware("h100") is hardware("H100") is H100
    with pytest.raises(ValueError, match=r"no hardware 'tpu'.*h100.*file of your own.*base: h100"):
        hardware("tpu")


def test_a_file_overrides_figures_of_a_preset(tmp_path):
    text = "base: h100\nmemory: 94 GB\ndevices_per_host: 4\nnetwork_bandwidth: 200 Gbit/s\n"
    spec = read_hardware(written(tmp_path, text))
    assert spec.name.startswith("my_cluster-")
    expected = replace(H100, memory_bytes=94 * 10**9, devices_per_node=4, network_bytes_per_s=25e9, name=spec.name)
    assert spec == expected
    again = read_hardware(written(tmp_path, text.replace("94", "96")))
    assert again.name != spec.name  # other figures are other hardware


def test_a_file_may_give_every_figure_itself(tmp_path):
    spec = read_hardware(written(tmp_path, json.dumps(COMPLETE | {"name": "mine"}), "any.json"))
    assert spec.name.startswith("mine-")
    assert (spec.memory_bytes, spec.memory_bytes_per_s, spec.l2_bytes) == (80 * 10**9, 3.35e12, 50 * 2**20)
    assert spec.launch_s == pytest.approx(3.5e-6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("base: h100\nmemroy: 80 GB\n", r"unknown key 'memroy'.*memory_bandwidth"),
        ("base: h100\nmemory: 80\n", r"memory is '80'.*GiB.*`memory: 80 GB`"),
        ("base: h100\nmemory: 80 GHz\n", r"memory is '80 GHz'"),
        ("base: h100\nlink_bandwidth: 0 GB/s\n", "link_bandwidth is '0 GB/s'"),
        ("base: h100\nlink_bandwidth: -3 GB/s\n", "above zero"),
        ("base: h100\nlink_bandwidth: fast\n", "no number above zero with one of the units"),
        ("base: h100\nmemory: 1.2.3 GB\n", "no number above zero with one of the units"),
        (f"base: h100\nmemory: '{'9' * 5000} 40 GiB'\n", "memory is"),
        ("base: h100\ndevices_per_host: 8 GB\n", "devices_per_host is '8 GB'"),
        ("base: h100\ndevices_per_host: 2.5\n", "devices_per_host is '2.5'"),
        ("base: h100\nlink: carrier pigeon\n", r"link is 'carrier pigeon'.*nvlink"),
        ("base: h100\nlink_latency: 16 us\n", r"as measured on h100.*add `link: nvlink`"),
        ("base: tpu\n", "no preset 'tpu'"),
        ("memory: 80 GB\n", "memory_bandwidth is missing"),
        ("- 80 GB\n", "holds no figures"),
        ("base: [h100\n", "neither YAML nor JSON"),
    ],
)
def test_a_wrong_file_is_one_sentence_that_names_it(tmp_path, text, message):
    path = written(tmp_path, text)
    with pytest.raises(ValueError, match=message) as error:
        read_hardware(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"gone\.yaml is no hardware file"):
        hardware(str(tmp_path / "gone.yaml"))


def test_it_can_be_simulated(tmp_path):
    path = written(tmp_path, "base: h100\nlink_bandwidth: 4.5 GB/s\n")
    setup = TestbedSetup(num_devices=4, batch_size=65_536, lookups=lambda name: pytest.fail(name))
    mine, preset = open_testbed(f"simulated:{path}", setup), open_testbed("simulated:h100", setup)
    task, placement = roomy_task(pool_of(12), 4), Placement.whole(torch.arange(12) % 4, 4)
    slow, fast = mine.measure(task, placement), preset.measure(task, placement)
    assert slow.hardware.startswith("simulated my_cluster-")
    assert float(slow.costs.forward_comm_ms.max()) > 10 * float(fast.costs.forward_comm_ms.max())


def test_the_link_to_host_memory_may_be_left_out_and_is_part_of_the_name(tmp_path):
    without = {key: value for key, value in COMPLETE.items() if key != "host_bandwidth"}
    assert read_hardware(written(tmp_path, json.dumps(without), "any.json")).host_bytes_per_s is None
    plain = read_hardware(written(tmp_path, "base: h100\nmemory: 94 GB\n"))
    given = read_hardware(written(tmp_path, "base: h100\nmemory: 94 GB\nhost_bandwidth: 32 GB/s\n"))
    assert plain.host_bytes_per_s == H100.host_bytes_per_s
    assert given.host_bytes_per_s == 32e9
    assert plain.name != given.name
