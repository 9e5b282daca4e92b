"""The traced testbed as a whole: what it costs, that it repeats, and that a placer learns from it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dreamshard.constraints import Constraints
from dreamshard.cost_model import CostData, prediction_error
from dreamshard.exchange_sample import Exchange
from dreamshard.placed_shards import placed_shards
from dreamshard.placement import Placement
from dreamshard.sharding import SHARDING_TYPES, ShardedPlacement, ShardingType, TableSharding
from dreamshard.tables import concatenate
from dreamshard.task_sampling import sample_tasks
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds import open_testbed, testbed_names
from dreamshard.testbeds.accelerators.specs import H100, RTX2080TI
from dreamshard.testbeds.base import ExchangeTestbed, ShardingTestbed, Testbed, TestbedSetup
from dreamshard.testbeds.capacity import capacity_of
from dreamshard.testbeds.naming import is_testbed
from dreamshard.testbeds.traced import TracedTestbed
from dreamshard.training import fit_costs, improve_policy, make_placer, propose, start_training
from dreamshard.workloads.lookups import Lookups, WorkloadTable
from dreamshard.workloads.table_statistics import statistics
from tests.helpers.tables import roomy_task
from tests.helpers.trained import TINY

BATCH = 256


def lookups_of(name: str) -> Lookups:
    """Skewed lookups whose number and rows follow from the name alone."""
    generator = np.random.default_rng([ord(letter) for letter in name])
    lengths = generator.poisson(generator.uniform(1, 30), BATCH)
    rows = (20_000 * generator.random(int(lengths.sum())) ** generator.uniform(1, 6)).astype(np.int32)
    offsets = np.concatenate([[0], lengths.cumsum()])
    return Lookups(torch.from_numpy(rows), torch.from_numpy(offsets))


def tables_named(names, dims=(8, 16, 32, 64)):
    drawn = [WorkloadTable(name, 20_000, dims[i % len(dims)], lookups_of(name)) for i, name in enumerate(names)]
    return concatenate([statistics(table) for table in drawn])


def make_setup(**options) -> TestbedSetup:
    return TestbedSetup(**({"num_devices": 2, "batch_size": BATCH, "lookups": lookups_of} | options))


TABLES = tables_named([f"t{i}" for i in range(8)])
TASK = roomy_task(TABLES)
WHERE = Placement(torch.tensor([0, 1, 0, 1, 1, 0, 0, 1]), 2)


def test_it_is_opened_by_name_and_says_what_it_is():
    bed = open_testbed("traced:h100", make_setup())
    assert isinstance(bed, Testbed)
    assert isinstance(bed, ExchangeTestbed)
    assert (bed.name, bed.hardware) == ("traced", "traced h100")
    assert open_testbed("traced", make_setup()).hardware == "traced rtx2080ti"
    assert {"traced", "traced:h100", "traced:FILE.yaml"} <= set(testbed_names())
    assert capacity_of(bed, 2).memory_bytes == H100.memory_bytes
    assert is_testbed("traced:h100", "traced", "traced h100")
    assert not is_testbed("traced", "simulated", "simulated rtx2080ti")
    assert not is_testbed("traced", "traced", "traced h100")


def test_it_takes_a_file_of_ones_own_hardware(tmp_path):
    (tmp_path / "mine.yaml").write_text("base: h100\nmemory_bandwidth: 335 GB/s\ncache: 1 MiB\n")
    mine = open_testbed(f"traced:{tmp_path / 'mine.yaml'}", make_setup())
    assert mine.hardware.startswith("traced mine-")
    slow, fast = (bed.measure(TASK, WHERE) for bed in (mine, open_testbed("traced:h100", make_setup())))
    assert (slow.costs.forward_compute_ms > fast.costs.forward_compute_ms).all()


def test_a_cache_of_too_few_sets_to_tell_its_error_is_refused():
    with pytest.raises(ValueError, match=r"one of 1 of the 16 cache sets.*at least 65536 bytes"):
        TracedTestbed(make_setup(), replace(H100, l2_bytes=2**15))
    with pytest.raises(ValueError, match="one of 3 of the"):
        TracedTestbed(make_setup(), H100, sampled=3)


def test_the_same_placement_costs_the_same_to_the_bit_in_any_order():
    one, other = TracedTestbed(make_setup(), RTX2080TI), TracedTestbed(make_setup(), RTX2080TI)
    swapped = Placement(1 - WHERE.device, 2)
    all_on_one = Placement(torch.zeros(8, dtype=torch.int64), 2)
    first = [one.measure(TASK, where) for where in (WHERE, all_on_one, swapped)]
    again = [other.measure(TASK, where) for where in (swapped, all_on_one, WHERE)][::-1]
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a.costs.phases_ms(), b.costs.phases_ms())
        assert (a.overall_ms, a.spread_ms) == (b.overall_ms, b.spread_ms)
    assert torch.equal(first[0].costs.phases_ms(), first[2].costs.phases_ms().flip(0))
    assert first[1].costs.forward_compute_ms[1] == 0


def test_another_seed_samples_other_sets_and_finds_nearly_the_same():
    busy = replace(RTX2080TI, l2_bytes=2**18)
    costs = [TracedTestbed(make_setup(seed=s), busy, sampled=4).measure(TASK, WHERE).overall_ms for s in (0, 1, 2)]
    assert len(set(costs)) == 3
    assert max(costs) < 1.02 * min(costs)


def test_the_sample_states_its_error_and_more_sets_make_it_smaller():
    busy = replace(RTX2080TI, l2_bytes=2**20)
    few, all_sets = (TracedTestbed(make_setup(), busy, sampled=k).measure(TASK, WHERE) for k in (16, 1))
    assert few.repeats == all_sets.repeats == 8
    assert few.spread_ms > all_sets.spread_ms > 0


def test_a_smaller_cache_and_less_reuse_cost_more():
    small, large = (
        TracedTestbed(make_setup(), replace(H100, l2_bytes=size)).measure(TASK, WHERE).costs.phases_ms()
        for size in (2**17, 2**26)
    )
    assert (small[:, [0, 3]] > large[:, [0, 3]]).all()
    assert torch.equal(small[:, 1:3], large[:, 1:3])


def test_columns_of_a_table_use_its_lookups_and_read_its_rows_in_part():
    bed, task = TracedTestbed(make_setup(), RTX2080TI), roomy_task(tables_named(["t0"], dims=(64,)))
    halves = Placement(torch.tensor([0, 1]), 2, column_parts(task))
    whole = bed.measure(task, Placement(torch.tensor([0]), 2)).costs
    split = bed.measure(task, halves).costs
    assert (split.forward_compute_ms < whole.forward_compute_ms[0]).all()
    assert (split.forward_comm_ms < whole.forward_comm_ms[0]).all()


def column_parts(task):
    return task.split(torch.tensor([2]))[1]


def test_lookups_of_too_few_samples_or_of_other_tables_are_refused():
    with pytest.raises(ValueError, match="lookups of 256 samples, too few for the batch of 512"):
        TracedTestbed(make_setup(batch_size=512), H100).measure(TASK, WHERE)
    small = replace(TABLES, rows=torch.full_like(TABLES.rows, 10_000))
    with pytest.raises(ValueError, match="outside the table of 10000 rows"):
        TracedTestbed(make_setup(), H100).measure(roomy_task(small), WHERE)


def test_an_exchange_costs_what_the_same_bytes_cost_in_a_placement():
    bed = TracedTestbed(make_setup(), H100)
    costs = bed.measure(TASK, WHERE).costs
    sent = [4 * BATCH * int(TABLES.dim[WHERE.device == d].sum()) for d in (0, 1)]
    alone = bed.measure_exchange(Exchange(sent_bytes=torch.tensor(sent)))
    torch.testing.assert_close(alone.forward_ms, costs.forward_comm_ms)


def test_precisions_of_single_tables_count():
    bed = TracedTestbed(make_setup(), replace(RTX2080TI, l2_bytes=2**17))
    plain, mixed = (
        bed.measure(replace(TASK, precision_of=of), WHERE).costs.forward_compute_ms for of in ({}, {"t1": "int8"})
    )
    assert plain[0] == mixed[0]
    assert mixed[1] < plain[1]


def test_a_placer_learns_from_it():
    pool = tables_named([f"p{i}" for i in range(16)])
    bed = TracedTestbed(make_setup(), RTX2080TI)
    tasks = sample_tasks(pool, 4, 8, 2, 2**30, torch.Generator().manual_seed(0))
    config = replace(TINY, cost_steps=60)
    state, samples = start_training(pool, config, seed=0), []
    for _ in range(config.iterations):
        samples += [bed.measure(task, placement) for task, placement in propose(state, tasks)]
        fit_costs(state, samples)
        improve_policy(state, tasks)
    assert prediction_error(state.cost_network, CostData.of(samples, state.normaliser)).mape < 0.2
    task = PlacementTask(TABLES, 2, 2**30)
    assert bed.measure(task, make_placer(state).place(task)).overall_ms > 0


def sharded(dim: int, way: ShardingType, cached_share: float | None = None) -> ShardedPlacement:
    """One table on four devices of two hosts."""
    half = ((0, dim // 2), (dim // 2, dim))
    columns, where = {
        "table_wise": (((0, dim),), (3,)),
        "column_wise": (half, (0, 3)),
        "table_row_wise": (((0, dim),), (1,)),
        "grid_shard": (half, (0, 1)),
    }.get(way, (((0, dim),), ()))
    sharding = TableSharding(sharding_type=way, columns=columns, where=where, cached_share=cached_share)
    return ShardedPlacement((sharding,), num_devices=4, devices_per_host=2)


def any_task(tables, num_devices=4):
    return replace(
        roomy_task(tables, num_devices),
        devices_per_host=2,
        constraints=Constraints(sharding_types=SHARDING_TYPES, caching=True),
    )


@pytest.mark.parametrize("way", [way for way in SHARDING_TYPES if way != "data_parallel"])
def test_every_way_to_shard_has_costs_that_repeat(way):
    task, where = any_task(tables_named(["t"], dims=(32,))), sharded(32, way)
    one, again = (open_testbed("traced", make_setup(num_devices=4)).measure_sharding(task, where) for _ in range(2))
    assert torch.equal(one.costs.phases_ms(), again.costs.phases_ms())
    holding = torch.zeros(4, dtype=torch.bool)
    holding[placed_shards(task, where).device] = True
    assert torch.equal(one.costs.forward_compute_ms > 0, holding)
    assert torch.equal(one.costs.backward_compute_ms > 0, holding)
    assert (one.costs.forward_comm_ms > 0).all()
    assert (one.index_ms > 0).all()
    assert one.spread_ms >= 0


def test_whole_tables_and_columns_cost_the_same_however_they_are_named():
    bed = open_testbed("traced", make_setup())
    sample = bed.measure_sharding(TASK, ShardedPlacement.of(WHERE, TABLES))
    assert isinstance(bed, ShardingTestbed)
    assert torch.equal(sample.costs.phases_ms(), bed.measure(TASK, WHERE).costs.phases_ms())


def test_a_block_of_rows_costs_what_its_own_lookups_do():
    tables, whole = tables_named(["w"], dims=(32,)), lookups_of("w")
    bed = TracedTestbed(make_setup(num_devices=4), H100, sampled=1)
    costs = bed.measure_sharding(any_task(tables), sharded(32, "row_wise")).costs
    for d in range(4):
        own = whole.of_rows(5000 * d, 5000 * (d + 1))
        block = replace(tables, rows=torch.tensor([5000]), lookups=torch.tensor([len(own.indices)]))
        alone = TracedTestbed(make_setup(lookups=lambda _, own=own: own), H100, sampled=1)
        expected = alone.measure(roomy_task(block), Placement(torch.tensor([0]), 2)).costs
        for phase in ("forward_compute_ms", "backward_compute_ms"):
            assert float(getattr(costs, phase)[d]) == pytest.approx(float(getattr(expected, phase)[0]), rel=0.02)
    assert costs.forward_compute_ms.unique().numel() == 4


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (sharded(32, "data_parallel"), "'t' is copied to all devices, which the testbed 'traced' cannot measure"),
        (sharded(32, "row_wise", 0.5), "'t' is in host memory with a cache, which .* measure on `simulated`"),
    ],
)
def test_tables_that_other_kernels_serve_are_refused_in_a_sentence(where, said):
    task = any_task(tables_named(["t"], dims=(32,)))
    with pytest.raises(ValueError, match=said):
        open_testbed("traced", make_setup(num_devices=4)).measure_sharding(task, where)
