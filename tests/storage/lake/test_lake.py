import math
import os
import pickle
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

import pytest
import torch

from dreamshard.costs import DeviceCosts, Exchange, ExchangeSample, Infeasible
from dreamshard.tables import ModelTable, concatenate
from dreamshard.tasks import PlacementTask
from dreamshard.workloads import Lookups, dataset_version, statistics
from storage.filesystem import list_file_infos
from storage.lake.lake import Lake
from tests.helpers.lake import append_samples, query
from tests.helpers.samples import make_sample
from tests.helpers.testbeds import simulated


def files(lake: Lake) -> dict[str, datetime]:
    """Every file of the lake with its time of change."""
    return {str(entry.path): entry.modified for entry in list_file_infos(lake.root)}


def lookups_of(name: str, indices: list[int]) -> tuple[ModelTable, Lookups]:
    offsets = torch.tensor([0, 1, len(indices)], dtype=torch.int32)
    return ModelTable(name, 10, 4, num_poolings=2.0), Lookups(torch.tensor(indices, dtype=torch.int32), offsets)


def test_tables_come_back_bit_for_bit_and_the_last_are_the_newest(lake, tables, version):
    back = lake.read_dataset(version)
    assert back.names == tables.names
    for name in ("rows", "dim", "pooling_factor", "bins", "lookups", "unique_rows", "block_share"):
        assert torch.equal(getattr(back, name), getattr(tables, name)), name
        assert getattr(back, name).dtype == getattr(tables, name).dtype, name
    assert dataset_version(back) == version
    before = files(lake)
    assert lake.write_dataset(tables, "another name of the same") == version
    assert files(lake) == before
    with pytest.raises(ValueError):
        lake.read_dataset("nope")
    other = lake.write_dataset(tables.select([0, 1]), "half")
    assert lake.newest_dataset() == other
    lake.write_dataset(tables, "all of them again")
    assert (lake.newest_dataset(), lake.has_dataset(other)) == (version, True)


def test_datasets_that_share_a_table_share_its_lookups(lake):
    first, second, third = (lookups_of(*one) for one in (("a", [1, 1, 3]), ("b", [5, 5, 5]), ("c", [2, 3, 4])))
    for dataset in ([first, second], [first, third]):
        described = [statistics(*table) for table in dataset]
        for (_, lookups), its in zip(dataset, described, strict=True):
            lake.write_table_lookups(lookups, its)
        version = lake.write_dataset(concatenate(described), "by hand")
        source = pickle.loads(pickle.dumps(lake.lookup_source(version)))
        assert source("a").indices.tolist() == [1, 1, 3]
        assert source(its.names[0]).indices.tolist() == lookups.indices.tolist()
        assert (source("a").offsets.tolist(), lake.read_dataset(version).poolings.tolist()) == ([0, 1, 3], [2, 2])
    assert len(list_file_infos(lake.root / "lookups")) == 3


def test_tasks_come_back_as_they_were_drawn(lake, task, version, tables):
    drawn = [task, PlacementTask(tables.select([3, 1]), 4, 2**40, name="train-001", devices_per_host=2)]
    key = lake.write_tasks(drawn, version, "train", seed=3)
    assert lake.write_tasks(drawn, version, "train", seed=3) == key
    back = lake.read_tasks(version, "train", key)
    assert [one.tables.names for one in back] == [("d", "a", "e"), ("e", "b/c")]
    for name in ("name", "num_devices", "devices_per_host", "memory_bytes", "precision", "optimizer"):
        assert [getattr(one, name) for one in back] == [getattr(one, name) for one in drawn], name
    with pytest.raises(ValueError):
        lake.read_tasks(version, "test", "other")


def test_samples_come_back_bit_for_bit_in_order(lake, sample, version):
    later = make_sample(replace(sample.task, devices_per_host=1), [0, 0, 1], testbed="cluster", ms=0.7)
    append_samples(lake, [later], "run", 2, version)
    append_samples(lake, [sample], "run", 1, version)
    for back, written in zip(lake.read_cost_samples("run"), (sample, later), strict=True):
        assert back.placement.device.tolist() == written.placement.device.tolist()
        assert torch.equal(back.costs.phases_ms, written.costs.phases_ms)
        assert back.task.tables.names == ("d", "a", "e")
        assert back.task.tables.pooling_factor.tolist() == written.task.tables.pooling_factor.tolist()
        for name in ("overall_ms", "repeats", "clock", "testbed", "hardware", "batch_size", "versions"):
            assert getattr(back, name) == getattr(written, name), name
        for name in ("name", "num_devices", "devices_per_host", "memory_bytes", "precision", "optimizer"):
            assert getattr(back.task, name) == getattr(written.task, name), name


def test_every_round_is_kept_and_the_least_disturbed_counts(lake, settings, sample, version):
    slow = replace(sample, costs=DeviceCosts(2 * sample.costs.phases_ms))
    rounds = [replace(slow, round=0), replace(sample, round=1), replace(slow, round=2)]
    again = [replace(slow, repeat=1), replace(slow, repeat=9, is_reference=True)]
    append_samples(lake, [*rounds, *again], "run", 1, version)
    assert [stored.round for stored in lake.read_cost_samples("run")] == [1, 0]
    kept = [(round_.round, round_.repeat, round_.is_reference) for round_ in lake.read_rounds("run")]
    assert kept == [(0, 0, False), (1, 0, False), (2, 0, False), (0, 1, False), (0, 9, True)]
    joined = "select count(*), max(device_ms), min(round) from device_costs join cost_samples using (sample_id)"
    for sql, expected in (
        ("select round, repeat, overall_ms from cost_samples order by repeat", [1, 0, sample.overall_ms]),
        ("select count(*), count_if(is_least), count_if(is_reference) from rounds", [5, 3, 1]),
        (joined, [4, pytest.approx(slow.overall_ms), 0]),
    ):
        assert list(query(settings, sql)[0].values()) == expected


def test_the_same_samples_again_add_nothing_even_among_new_ones(lake, sample, version):
    other = make_sample(sample.task, [0, 0, 0])
    first = append_samples(lake, [sample], "run", 1, version)
    before = files(lake)
    assert append_samples(lake, [sample], "run", 1, version) == first
    assert files(lake) == before
    assert append_samples(lake, [sample, other, other], "run", 1, version)[0] == first[0]
    assert len(lake.read_cost_samples("run")) == 2


def test_writers_of_one_run_at_the_same_time_lose_nothing(lake, version, task):
    def write(base: float):
        for i in range(10):
            append_samples(lake, [make_sample(task, [0, 1, 0], ms=base + i)], "run", 1, version)

    with ThreadPoolExecutor(3) as writers:
        list(writers.map(write, (0.25, 0.75, 0.5)))
    assert len(lake.read_rounds("run")) == 30


def test_a_sample_that_did_not_fit_comes_back_and_is_in_no_mean(lake, settings, sample, version):
    nothing, why = DeviceCosts(torch.zeros(2, 4)), Infeasible(device=1, asked_bytes=3000, free_bytes=2000)
    misfit = replace(sample, costs=nothing, repeats=0, infeasible=why)
    append_samples(lake, [misfit, make_sample(misfit.task, [1, 1, 1])], "run", 1, version)
    stored = lake.read_cost_samples("run")
    assert [sample.infeasible for sample in stored] == [misfit.infeasible, None]
    assert stored[0].overall_ms == math.inf
    assert stored[0].costs.phases_ms.abs().sum() == 0
    append_samples(lake, [misfit], "run", 1, version)
    rows = query(settings, "select avg(overall_ms) as mean, sum(asked_bytes) as asked from cost_samples")
    assert rows == [{"mean": 2.0, "asked": 3000}]
    rows = query(settings, "select count(*) as rows, count(forward_compute_ms) as known from device_costs")
    assert rows == [{"rows": 4, "known": 2}]


def described(sample: ExchangeSample) -> str:
    values = vars(sample) | vars(sample.exchange)
    return str([value for name, value in sorted(values.items()) if name != "exchange"])


def test_exchanges_come_back_as_they_were_measured(lake, settings):
    sent = (
        Exchange(sent_bytes=torch.tensor([8, 8, 8, 4]), devices_per_host=2),
        Exchange(sent_bytes=torch.tensor([64, 64])),
    )
    samples = [replace(simulated().measure_exchange(exchange), versions={"torch": "2.13.0"}) for exchange in sent]
    samples[1] = replace(samples[1], host_devices=None)
    for _ in range(2):
        lake.write_exchanges("NVIDIA H200/x", samples)
    versions = {"torch": "2.13.0", "fbgemm": "1"}
    stored = lake.read_exchanges("NVIDIA H200/x", versions)
    assert list(map(described, stored)) == list(map(described, samples))
    assert lake.read_exchanges("NVIDIA H100", versions) == []
    assert lake.read_exchanges("NVIDIA H200/x", {"torch": "2.14.0"}) == []
    select = "select num_devices, devices_per_host, largest_bytes, links from exchange_samples order by 1 desc"
    rows = query(settings, select)
    assert [tuple(row.values()) for row in rows] == [(4, 2, 8, "NVIDIA H200/x"), (2, None, 64, "NVIDIA H200/x")]


def measured(lake: Lake) -> list[list[int]]:
    return [sample.placement.device.tolist() for sample in lake.read_cost_samples("run")]


def file_count(lake: Lake, dataset: str) -> int:
    return len(list_file_infos(lake.root / dataset))


def test_samples_kept_one_by_one_are_one_file_of_the_lake(lake, version, task):
    placements = [[0, 0, 1], [0, 1, 0], [1, 0, 0]]
    append_samples(lake, [make_sample(task, placements[0])], "run", 1, version)
    with suppress(RuntimeError), lake.collecting("run", 2, version) as keep:
        for placement in placements[1:]:
            keep(make_sample(task, placement))
        assert (len(measured(lake)), file_count(lake, "sample_buffer")) == (1, 2)
        raise RuntimeError("rank 1 died")
    assert measured(lake) == placements
    assert (file_count(lake, "cost_samples"), file_count(lake, "sample_buffer")) == (1, 0)


KILLED = """
import sys
from contextlib import suppress
from pathlib import Path
import storage.lake.lake
from tests.helpers.samples import make_sample, four_tables
from dreamshard.tasks import PlacementTask
from storage.lake import Lake

def stop(*_):
    print("kept", flush=True)
    sys.stdin.read()

module, task = storage.lake.lake, PlacementTask(four_tables(), 2, 10**6)
module.remove = stop
with Lake(Path(sys.argv[1]), Path("unused")).collecting("run", 1, sys.argv[2]) as keep:
    keep(make_sample(task, [0, 1, 0, 1]))
    keep(make_sample(task, [1, 1, 0, 1]))
    if __doc__ == "before":
        stop()
"""


@pytest.mark.processes
@pytest.mark.parametrize("moment", ["before", "while"])
def test_a_killed_process_loses_and_duplicates_no_sample(lake, version, task, moment):
    """Killed before its samples were in the lake, and after, but while the buffer held them too."""
    command = [sys.executable, "-c", f"'{moment}'\n{KILLED}", str(lake.root), version]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "kept\n"
        os.kill(process.pid, signal.SIGKILL)
    assert (file_count(lake, "sample_buffer"), len(measured(lake))) == (2, 0 if moment == "before" else 2)
    with lake.collecting("run", 1, version):
        assert sorted(measured(lake)) == [[0, 1, 0, 1], [1, 1, 0, 1]]
    assert (file_count(lake, "sample_buffer"), len(measured(lake))) == (0, 2)
