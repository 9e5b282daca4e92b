"""More ways to shard never cost more: lists of equal, unequal and tiny tables, on one to three hosts.

A kernel's steps make many local optima, so that two searches differ by up to 4 %.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dreamshard import read_tables
from dreamshard.constraints import ANY_SHARDING, Constraints
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.search import RooflinePlacer
from dreamshard.shards import Shards
from dreamshard.tasks import PlacementTask
from tests.helpers.tables import tables_of

A100 = RooflinePlacer(PRESETS["a100"])
NOISE = 1.04
NARROWER = [
    ("table_wise",),
    ("table_wise", "column_wise"),
    ("table_wise", "data_parallel"),
    ("table_wise", "column_wise", "row_wise"),
    ("table_wise", "column_wise", "data_parallel"),
]


def random_tables(count, seed):
    generator = np.random.default_rng(seed)
    rows = np.exp(generator.uniform(np.log(1e5), np.log(2e7), count)).astype(int)
    return rows, generator.choice([16, 32, 64, 128], count), np.exp(generator.uniform(0, 4, count)).round(1)


LISTS = {
    "equal": (([4_000_000] * 10, [128] * 10, [20] * 10), 8, None),
    "one giant": (([60_000_000] + [1_000_000] * 10, [256] + [64] * 10, [120] + [10] * 10), 8, None),
    "tiny": (([5_000] * 200, [8, 16, 32, 64] * 50, [4] * 200), 8, None),
    "two hosts": (random_tables(24, 0), 8, 4),
    "three hosts": (random_tables(20, 1), 6, 2),
}


@pytest.fixture(params=LISTS, scope="module")
def task(request, tmp_path_factory):
    columns, num_devices, per_host = LISTS[request.param]
    file = tmp_path_factory.mktemp("lists") / "tables.csv"
    lines = [f"t{i},{','.join(map(str, each))}" for i, each in enumerate(zip(*columns, strict=True))]
    file.write_text("\n".join(["name,rows,dim,pooling_factor", *lines]))
    return PlacementTask(
        read_tables(file), num_devices, 2**36, devices_per_host=per_host, batch_size=65_536, constraints=ANY_SHARDING
    )


def cost_ms(task):
    return float(A100.predict(task, A100.place(task)).overall_ms())


def test_every_way_to_shard_costs_no_more_than_fewer(task):
    least = min(cost_ms(replace(task, constraints=Constraints(sharding_types=types))) for types in NARROWER)
    assert cost_ms(task) <= NOISE * least


@pytest.mark.parametrize(("tables", "devices"), [(26, 8), (50, 16)])
def test_the_last_of_equal_tables_are_split_over_all_devices(tables, devices):
    task = PlacementTask(tables_of([100_000] * tables, 128), devices, 2**36)
    shards = Shards.of(task, A100.place(task))
    width = shards.per_device(torch.diff(shards.columns)[:, 0])
    assert width.tolist() == [128 * tables // devices] * devices
