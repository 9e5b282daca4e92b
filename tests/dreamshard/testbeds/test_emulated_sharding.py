"""One device that stands for all, and tables that are sharded in any way."""

from dataclasses import replace

import pytest
import torch

from dreamshard.constraints import Constraints
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.placement import SHARDING_TYPES, Placement, TableSharding
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.emulated import EmulatedTestbed
from tests.helpers.lookups import EvenLookups
from tests.helpers.tables import roomy_task, tables_of_dims

H100 = PRESETS["h100"]

BATCH = 64
COLUMNS = ((0, 16),)


def bed_of(**changes) -> EmulatedTestbed:
    options = {"num_devices": 4, "batch_size": BATCH, "lookups": EvenLookups(BATCH), "warmups": 1, "repeats": 3}
    return EmulatedTestbed(TestbedSetup(**(options | changes)), "cpu", H100)


def task_of(num_tables: int) -> PlacementTask:
    task = roomy_task(tables_of_dims([16] * num_tables, rows=500), 4)
    return replace(task, constraints=Constraints(sharding_types=SHARDING_TYPES, caching=True))


def sharded(*tables: TableSharding) -> Placement:
    return Placement(tables, 4, 4)


ROW_WISE = TableSharding("row_wise")
COPIES = TableSharding("data_parallel")
WHOLE = TableSharding("table_wise", where=(1,))
ON_HOST = TableSharding("table_row_wise", where=(0,))


def test_operators_are_measured_and_collectives_follow_from_links():
    bed = bed_of()
    sample = bed.measure(task_of(4), sharded(ROW_WISE, COPIES, WHOLE, ON_HOST))
    assert (sample.costs.phases_ms() > 0).all()
    assert (sample.index_ms > 0).all()
    assert (sample.clock, sample.repeats, sample.testbed) == ("thread_cpu", 3, "emulated")
    assert torch.equal(sample.costs.forward_comm_ms, sample.costs.forward_comm_ms[:1].expand(4))
    assert (sample.costs.backward_comm_ms > sample.costs.forward_comm_ms).all()


def test_a_row_block_beyond_the_rows_looked_up_costs_less_than_the_first():
    bed = bed_of(batch_size=4096, lookups=EvenLookups(4096, per_sample=400))  # of the first 8 of 500 rows
    costs = bed.measure(task_of(1), sharded(ROW_WISE)).costs
    assert costs.forward_compute_ms[0] > 2 * costs.forward_compute_ms[1:].max()


def test_tables_of_several_precisions_are_measured():
    task = replace(task_of(2), precision_of={"table-1": "fp16"})
    sample = bed_of().measure(task, Placement.whole(torch.tensor([0, 0]), 4))
    assert sample.costs.forward_compute_ms[0] > 0
    assert sample.placement.device.tolist() == [0, 0]


def test_shards_over_the_limit_are_a_sample_marked_infeasible():
    sample = bed_of(memory_limit_bytes=20_000).measure(task_of(2), sharded(WHOLE, COPIES))
    assert sample.infeasible.device == 0
    assert sample.overall_ms == float("inf")
    assert sample.costs.phases_ms().abs().sum() == 0


def test_what_the_cpu_cannot_hold_is_refused_by_name():
    cached = replace(WHOLE, cached_share=0.5)
    with pytest.raises(
        ValueError, match="'table-0' is in host memory with a cache on the device, which only GPUs have"
    ):
        bed_of().measure(task_of(1), sharded(cached))
