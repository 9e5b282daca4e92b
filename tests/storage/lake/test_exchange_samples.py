"""All-to-alls in the lake and in SQL, and the devices per host of tasks and samples."""

from dataclasses import replace

import torch

from dreamshard.costs import Exchange, ExchangeSample
from dreamshard.tasks import PlacementTask
from storage.lake import catalog, read_exchanges, write_exchanges
from storage.lake.lake import Lake
from storage.settings import Settings
from tests.helpers.lake import append_samples
from tests.helpers.samples import make_sample
from tests.helpers.testbeds import simulated

VERSIONS = {"torch": "2.13.0", "fbgemm-gpu": "1.8.0"}


def measured(*sent_bytes: int, devices_per_host: int | None = 2, **changed) -> ExchangeSample:
    exchange = Exchange(sent_bytes=torch.tensor(sent_bytes), devices_per_host=devices_per_host)
    return replace(simulated().measure_exchange(exchange), versions={"torch": "2.13.0"}, **changed)


def described(sample: ExchangeSample) -> list[object]:
    values = vars(sample) | vars(sample.exchange)
    return [
        value.tolist() if isinstance(value, torch.Tensor) else value
        for name, value in values.items()
        if name != "exchange"
    ]


def test_exchanges_come_back_as_they_were_measured(lake: Lake):
    samples = [measured(8, 8, 8, 4), measured(64, 64, devices_per_host=None, host_devices=None)]
    write_exchanges(lake.root, "NVIDIA H200/x", samples)
    write_exchanges(lake.root, "NVIDIA H200/x", samples)
    found = read_exchanges(lake.root, "NVIDIA H200/x", VERSIONS)
    assert sorted(map(described, found), key=str) == sorted(map(described, samples), key=str)
    assert read_exchanges(lake.root, "NVIDIA H100", VERSIONS) == []
    assert len(read_exchanges(lake.root, None, VERSIONS)) == 2
    assert read_exchanges(lake.root, "NVIDIA H200/x", {"torch": "2.14.0"}) == []


def test_exchanges_are_a_view(lake: Lake, settings: Settings):
    write_exchanges(lake.root, "abacus", [measured(8, 16)])
    [row] = catalog.query(
        settings, "select num_devices, devices_per_host, largest_bytes, hardware from exchange_samples"
    )
    assert row == {"num_devices": 2, "devices_per_host": 2, "largest_bytes": 16, "hardware": "simulated rtx2080ti"}


def test_tasks_and_samples_keep_their_devices_per_host(lake: Lake, task: PlacementTask, version: str):
    across = replace(task, devices_per_host=1, name="across")
    key = lake.write_tasks([task, across], version, "train")
    assert [each.devices_per_host for each in lake.read_tasks(version, "train", key)] == [None, 1]
    append_samples(lake, [make_sample(across, [1, 0, 1])], "run", 1, version)
    assert [sample.task.devices_per_host for sample in lake.read_cost_samples("run")] == [1]
