"""Times of the collectives of every way to shard."""

from dataclasses import replace

import pytest
import torch

from dreamshard.hardware.accelerator import PRESETS
from dreamshard.hardware.links import NETWORK_SHARE, PEER_S, collective_times, collectives_s, ring_s
from dreamshard.shards import Collectives

A100 = PRESETS["a100"]
RTX2080TI = PRESETS["rtx2080ti"]
V100 = PRESETS["v100"]

PLAIN = replace(A100, link_curve=None)
BATCH = 4096


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


def test_without_such_tables_no_time_passes():
    assert (collectives_s(carried(), BATCH, A100, 8) == 0).all()


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


@pytest.mark.parametrize("spec", [V100, RTX2080TI])
def test_links_without_measurements_take_the_share_of_their_kind(spec):
    found = float(ring_s(torch.tensor(1e9, dtype=torch.float64), 8, spec, 8, "reduce_scatter"))
    full_s = 0.875e9 / spec.link_bytes_per_s
    assert full_s < found < 20 * full_s
