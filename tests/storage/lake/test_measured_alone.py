"""All-to-alls that were measured before, in the lake and in SQL; and samples of placements that did not fit."""

import math
from dataclasses import replace

import pytest
import torch

from dreamshard.costs import CostSample, DeviceCosts, Exchange, ExchangeSample, Infeasible
from dreamshard.tasks import PlacementTask
from storage.lake import Lake, catalog
from storage.lake.measured_alone import read_exchanges, write_exchanges
from storage.settings import Settings
from tests.helpers.lake import append_samples
from tests.helpers.samples import make_sample
from tests.helpers.testbeds import simulated


@pytest.fixture
def misfit(task: PlacementTask) -> CostSample:
    return replace(
        make_sample(task, [1, 0, 1]),
        costs=DeviceCosts.from_phases(torch.zeros(task.num_devices, 4)),
        spread_ms=0.0,
        repeats=0,
        infeasible=Infeasible(device=1, asked_bytes=3000, free_bytes=2000),
    )


def test_a_sample_that_did_not_fit_comes_back_and_is_in_no_mean(
    lake: Lake, settings: Settings, misfit: CostSample, version: str
):
    append_samples(lake, [misfit, make_sample(misfit.task, [1, 1, 1])], "run", 1, version)
    found = lake.read_cost_samples("run")
    assert [sample.infeasible for sample in found] == [misfit.infeasible, None]
    assert found[0].overall_ms == math.inf
    assert found[0].costs.phases_ms().abs().sum() == 0
    append_samples(lake, [misfit], "run", 1, version)
    rows = catalog.query(settings, "select avg(overall_ms) as mean, sum(asked_bytes) as asked from cost_samples")
    assert rows == [{"mean": 2.0, "asked": 3000}]
    rows = catalog.query(settings, "select count(*) as rows, count(forward_compute_ms) as known from device_costs")
    assert rows == [{"rows": 4, "known": 2}]


def measured(*sent_bytes: int, devices_per_host: int | None = 2, **changed) -> ExchangeSample:
    exchange = Exchange(sent_bytes=torch.tensor(sent_bytes), devices_per_host=devices_per_host)
    return replace(simulated().measure_exchange(exchange), versions={"torch": "2.13.0"}, **changed)


def described(sample: ExchangeSample) -> str:
    values = vars(sample) | vars(sample.exchange)
    return str([value for name, value in sorted(values.items()) if name != "exchange"])


def test_exchanges_come_back_as_they_were_measured(lake: Lake):
    samples, versions = (
        [measured(8, 8, 8, 4), measured(64, 64, devices_per_host=None, host_devices=None)],
        {"fbgemm": "1"},
    )
    for _ in range(2):
        write_exchanges(lake.root, "NVIDIA H200/x", samples)
    found = read_exchanges(lake.root, "NVIDIA H200/x", versions | {"torch": "2.13.0"})
    assert list(map(described, found)) == list(map(described, samples))
    assert read_exchanges(lake.root, "NVIDIA H100", versions | {"torch": "2.13.0"}) == []
    assert read_exchanges(lake.root, "NVIDIA H200/x", versions | {"torch": "2.14.0"}) == []


def test_exchanges_are_a_view(lake: Lake, settings: Settings):
    write_exchanges(lake.root, "abacus", [measured(8, 16)])
    rows = catalog.query(settings, "select num_devices, devices_per_host, largest_bytes, links from exchange_samples")
    assert rows == [{"num_devices": 2, "devices_per_host": 2, "largest_bytes": 16, "links": "abacus"}]
