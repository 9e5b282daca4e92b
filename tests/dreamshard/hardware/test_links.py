"""All-to-alls within and between nodes."""

from dataclasses import replace

import pytest
import torch

from dreamshard.hardware.accelerator import PRESETS
from dreamshard.hardware.links import (
    NETWORK_SHARE,
    PEER_S,
    all_to_all_s,
    collective_times,
    vector_bytes,
)

A100 = PRESETS["a100"]
H100 = PRESETS["h100"]
L40S = PRESETS["l40s"]
RTX2080TI = PRESETS["rtx2080ti"]
V100 = PRESETS["v100"]

PLAIN = replace(A100, link_curve=None)


def seconds(sent_bytes: float, num_devices: int, spec, devices_per_host: int | None = None) -> float:
    sent = torch.full((1, num_devices), sent_bytes, dtype=torch.float64)
    return all_to_all_s(sent, spec, devices_per_host)[0, 0].item()


def test_own_figures_take_the_largest_senders_bytes_over_the_link():
    # Device 0 sends 96 floats for each of the 2048 samples of device 1.
    expected = 96 * 4 * 2048 / PLAIN.link_bytes_per_s + PLAIN.link_latency_s
    found = all_to_all_s(vector_bytes(torch.tensor([[96.0, 32.0]]), 4096), PLAIN)
    torch.testing.assert_close(found, torch.full((1, 2), expected))


@pytest.mark.parametrize("gpu", sorted(collective_times()))
def test_a_measured_link_takes_what_was_measured_at_the_largest_size(gpu):
    for num_gpus, by_bytes in collective_times()[gpu].items():
        largest = max(by_bytes)
        assert seconds(largest, num_gpus, PRESETS[gpu]) == pytest.approx(1e-6 * by_bytes[largest])


@pytest.mark.parametrize("spec", [*PRESETS.values(), PLAIN], ids=[*PRESETS, "plain"])
@pytest.mark.parametrize("num_devices", [2, 3, 8, 12, 72, 1024])
def test_more_bytes_of_the_largest_sender_never_take_less(spec, num_devices):
    sizes = torch.logspace(0, 10, 200, dtype=torch.float64)  # [B]
    sent = torch.cat([sizes[:, None], torch.ones(200, num_devices - 1, dtype=torch.float64)], dim=1)
    found = all_to_all_s(sent, spec)
    assert found.shape == sent.shape
    assert (found[:, :1] == found).all()
    assert (found[:, 0].diff() >= 0).all()
    assert found[-1, 0] > 10 * found[0, 0]


def test_a_link_twice_as_fast_moves_twice_the_bytes_in_the_same_time():
    fast = replace(H100, link_bytes_per_s=2 * H100.link_bytes_per_s)
    assert seconds(2e8, 8, fast) == pytest.approx(seconds(1e8, 8, H100))


@pytest.mark.parametrize(("spec", "measured"), [(V100, A100), (RTX2080TI, L40S)])
def test_a_link_without_measurements_never_reaches_its_datasheet(spec, measured):
    share = 1e9 * 7 / 8 / seconds(1e9, 8, spec) / spec.link_bytes_per_s
    known = 1e9 * 7 / 8 / seconds(1e9, 8, measured) / measured.link_bytes_per_s
    assert 0.3 * known < share < 3 * known < 3


def test_devices_of_two_nodes_exchange_over_the_slower_network():
    one_node = replace(A100, devices_per_node=16)
    assert seconds(1e6, 16, A100) > 2 * seconds(1e6, 16, one_node)
    assert seconds(1e6, 8, A100, devices_per_host=4) == seconds(1e6, 8, replace(A100, devices_per_node=4))


def test_what_leaves_the_node_takes_a_share_of_the_network_and_a_message_for_each_far_device():
    expected = 1e9 * 56 / 64 / (NETWORK_SHARE * A100.network_bytes_per_s) + A100.network_latency_s + 56 * PEER_S
    assert seconds(1e9, 64, A100) == pytest.approx(expected)


def test_two_nodes_of_a100_with_four_adapters_each_take_the_time_of_nccl_issue_1138():
    four_adapters = replace(A100, network_bytes_per_s=4 * 25e9 / 8)  # 200 Gb/s each
    assert seconds(4 * 2**30, 16, four_adapters) == pytest.approx(0.203, rel=0.15)
