"""Times of collectives: curves through public measurements within a node, a model between nodes."""

from dataclasses import replace

import pytest
import torch

from dreamshard.hardware.accelerator import PRESETS
from dreamshard.hardware.links import (
    MEASUREMENTS,
    NETWORK_SHARE,
    PEER_S,
    all_to_all_s,
    collective_times,
    collectives_s,
    fit_link_curve,
    ring_s,
    vector_bytes,
)
from dreamshard.shards import Collectives

A100 = PRESETS["a100"]
H100 = PRESETS["h100"]
L40S = PRESETS["l40s"]
RTX2080TI = PRESETS["rtx2080ti"]
V100 = PRESETS["v100"]

PLAIN = replace(A100, link_curve=None)
BATCH = 4096
TIMES_US = {2: {1024: 10.0, 2**20: 100.0}, 8: {1024: 20.0, 2**20: 400.0}}


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


def carried(num_devices: int = 16, per_host: int = 8, **what) -> Collectives:
    hosts = -(-num_devices // per_host)
    what.setdefault("host_dims", [0] * hosts)
    return Collectives(
        all_to_all_dims=torch.zeros(num_devices, dtype=torch.int64),
        row_wise_dims=what.get("row_wise_dims", 0),
        host_dims=torch.tensor(what["host_dims"]),
        all_reduce_bytes=what.get("all_reduce_bytes", 0),
        devices_per_host=per_host,
    )


@pytest.mark.parametrize("operation", ["reduce_scatter", "all_gather", "all_reduce"])
def test_a_measured_collective_takes_what_was_measured(operation):
    time_us = collective_times(operation)["a100"][8][2**29]
    found = ring_s(torch.tensor(2.0**29, dtype=torch.float64), 8, A100, 8, operation)
    assert float(found) == pytest.approx(1e-6 * time_us)


def test_a_reduce_scatter_moves_its_bytes_but_its_own_share_and_an_all_reduce_twice_as_many():
    num_bytes = torch.tensor(1e9, dtype=torch.float64)
    scattered = ring_s(num_bytes, 4, PLAIN, 8, "reduce_scatter") - PLAIN.link_latency_s
    reduced = ring_s(num_bytes, 4, PLAIN, 8, "all_reduce") - PLAIN.link_latency_s
    assert float(scattered) == pytest.approx(0.75e9 / PLAIN.link_bytes_per_s)
    assert float(reduced) == pytest.approx(2 * float(scattered))


def test_the_devices_of_a_host_share_what_a_ring_sends_to_other_hosts():
    num_bytes = 1e9
    found = float(ring_s(torch.tensor(num_bytes, dtype=torch.float64), 16, PLAIN, 2, "reduce_scatter"))
    network_s = num_bytes * 15 / 16 / 2 / (NETWORK_SHARE * PLAIN.network_bytes_per_s)
    assert found == pytest.approx(network_s + PLAIN.network_latency_s + 7 * PEER_S)


def test_row_wise_tables_wait_in_both_directions_and_data_parallel_ones_in_backward_only():
    rows = collectives_s(carried(row_wise_dims=128), BATCH, A100, 8)
    copies = collectives_s(carried(all_reduce_bytes=10**7), BATCH, A100, 8)
    assert min(rows.min(), copies[:, 1].min()) > 0
    assert (copies[:, 0] == 0).all()
    assert rows.shape == (16, 2)


def test_tables_on_one_host_hold_up_only_that_host_until_others_wait_for_it():
    alone = collectives_s(carried(8, host_dims=[64]), BATCH, PLAIN, 8)[:, 0]
    sums_s = 64 * 4 * BATCH * 7 / 8 / PLAIN.link_bytes_per_s + PLAIN.link_latency_s
    torch.testing.assert_close(alone, torch.full((8,), sums_s, dtype=torch.float64))
    both = collectives_s(carried(host_dims=[64, 0]), BATCH, PLAIN, 8)[:, 0]
    sent_bytes = 64 * 4 * BATCH / 8
    across_s = sent_bytes / 2 / (NETWORK_SHARE * PLAIN.network_bytes_per_s) + PLAIN.network_latency_s + PEER_S
    torch.testing.assert_close(both, torch.full((16,), sums_s + across_s, dtype=torch.float64))


def by_curve(curve, sent_bytes: float) -> float:
    return curve.seconds(torch.tensor(sent_bytes, dtype=torch.float64)).item()


def test_between_two_numbers_the_time_is_their_mean_in_logarithms():
    assert by_curve(fit_link_curve(TIMES_US, 4), 2**20) == pytest.approx(200e-6)


def test_below_the_smallest_size_it_takes_as_long_and_above_the_largest_it_grows_in_proportion():
    curve = fit_link_curve(TIMES_US, 2)
    assert by_curve(curve, 0) == by_curve(curve, 1024) == pytest.approx(10e-6)
    assert by_curve(curve, 10 * 2**20) == pytest.approx(1e-3)


def test_beyond_the_measured_numbers_latency_grows_by_doubling_and_the_rest_with_the_share_that_leaves():
    found = by_curve(fit_link_curve(TIMES_US, 32), 2**20)
    assert found == pytest.approx(400e-6 * (31 / 32) / (7 / 8) + 10e-6)


def test_times_that_fall_are_averaged():
    curve = fit_link_curve({2: {1: 8.0, 2: 2.0, 4: 16.0}}, 2)
    assert by_curve(curve, 1) == by_curve(curve, 2) == pytest.approx(4e-6)


def test_every_gpu_has_times_of_each_size_and_number():
    times = collective_times()
    assert times["h100"][8][2**29] == 1480.45  # by 2.27.3; 2.23 took 1468.6
    assert times["h200"][4][2**29] == 1202.4  # by 2.26.2; 2.23 took 1286.1
    assert {gpu: sorted(counts) for gpu, counts in times.items() if sorted(counts) != [2, 4, 8]} == {
        "gb200": [2, 4],
        "gb300": [2, 4],
    }
    assert all(len(by_bytes) == 21 for counts in times.values() for by_bytes in counts.values())


def test_the_measurements_name_their_sources_and_licence():
    readme = (MEASUREMENTS / "README.md").read_text()
    assert "ai-dynamo/aiconfigurator" in readme
    assert "Apache License, Version 2.0" in readme
