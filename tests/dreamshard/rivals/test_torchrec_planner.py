from dataclasses import replace

import pytest
import torch

from dreamshard import read_tables
from dreamshard.constraints import ANY_SHARDING
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.rivals.torchrec_planner import TorchRecPlanner
from dreamshard.tasks import NoPlacementError, PlacementTask, violation
from tests.helpers.tables import pool_of, tables_of, task_of

A100 = PRESETS["a100"]

pytest.importorskip("torchrec")


def test_a_table_with_most_lookups_is_alone_deterministically():
    task = PlacementTask(tables_of([1000] * 5, 16, [90.0, 1.0, 1.0, 1.0, 0.0]), 2, 2**30)
    hot, *cold = TorchRecPlanner().place(task).device.tolist()
    assert set(cold[:3]) == {1 - hot}
    assert TorchRecPlanner().place(task) == TorchRecPlanner().place(task)


@pytest.mark.parametrize(("precision", "optimizer"), [("fp32", "sgd"), ("fp16", "rowwise_adagrad")])
def test_memory_is_counted_to_the_byte_as_the_task_counts_it(precision, optimizer):
    tables = tables_of([1000] * 4, 16, [90.0, 1.0, 1.0, 1.0])
    table_bytes = int(PlacementTask(tables, 2, 0, precision, optimizer).table_bytes[0])
    full = PlacementTask(tables, 2, 2 * table_bytes, precision, optimizer)
    assert not violation(full, TorchRecPlanner().place(full))
    assert torch.bincount(TorchRecPlanner().place(full).device).tolist() == [2, 2]
    roomier = PlacementTask(tables, 2, 3 * table_bytes, precision, optimizer)
    assert sorted(torch.bincount(TorchRecPlanner().place(roomier).device).tolist()) == [1, 3]


def test_it_knows_which_devices_share_a_host():
    def place(devices_per_host):
        task = PlacementTask(pool_of(24), 8, 2**33, devices_per_host=devices_per_host)
        return TorchRecPlanner().place(task).device.tolist()

    assert place(None) == place(8) == place(16)
    assert place(2) != place(8)


def test_where_the_planner_finds_no_plan_it_says_so():
    with pytest.raises(NoPlacementError):
        TorchRecPlanner().place(task_of([3, 3, 2, 2, 2], 2, 6))  # only 3 + 3 | 2 + 2 + 2, which it does not try


def test_dear_links_make_it_share_dims_and_dear_memory_lookups():
    tables = tables_of([1000, 1000, 50_000], [64, 64, 4], [1.0, 1.0, 32.0])  # pooling x dim is 64, 64 and 128
    task = PlacementTask(tables, 2, 2**30)
    for memory, link in ((1e9, 1e15), (1e15, 1e9)):
        spec = replace(A100, memory_bytes_per_s=memory, link_bytes_per_s=link)
        first, second, _ = TorchRecPlanner(spec).place(task).device.tolist()
        assert (first == second) == (memory < link)


@pytest.mark.slow
def test_it_uses_other_sharding_types_if_it_may():
    task = PlacementTask(read_tables("mlperf-dlrm-dcnv2"), 16, 80 * 2**30, constraints=ANY_SHARDING, batch_size=65_536)
    placement = TorchRecPlanner(A100).place(task)
    assert violation(task, placement) == ""
    assert placement.devices_per_host == 8
    assert placement.sharding_types - {"table_wise", "column_wise"}
