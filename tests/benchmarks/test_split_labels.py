"""Rows of benchmarks say that tables were split by columns where placements do, and nowhere else."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from dreamshard.baselines import baselines
from dreamshard.placement import ColumnShard, Placement
from dreamshard.sweep.tables import Size, draw_tasks
from tests.benchmarks import bench_fixed_model, bench_quality
from tests.helpers.unseen_testbed import true_ms


@dataclass(frozen=True)
class Splitting:
    """Places the halves of every table on both devices."""

    name: str = "splitting"

    def place(self, task):
        dims = task.tables.dim.tolist()
        halves = [shard for t, dim in enumerate(dims) for shard in ((t, 0, dim // 2), (t, dim // 2, dim))]
        shards = tuple(ColumnShard(*shard) for shard in halves)
        return Placement(torch.tensor([0, 1] * len(dims)), 2, shards)


def test_placements_of_quality_are_split_if_one_of_them_is():
    drawn = draw_tasks("dim16", "train", Size(6, 2), 3, seed=0)
    whole = bench_quality.placed([baselines()["dim_greedy"]], drawn, true_ms)
    assert not whole.is_split
    both = bench_quality.placed([baselines()["dim_greedy"], Splitting()], drawn, true_ms)
    assert both.is_split
    assert both.costs.shape == (2, 3)
    least = whole.costs[0]
    assert whole.over(least) == 1
    assert both.over(least) == pytest.approx(np.mean(both.costs) / np.mean(least))
    low, _, high = both.interval(least).strip("()").partition(",")[0].partition(" to ")
    assert float(low) < both.over(least) < float(high)


def line(placer, task, *tables):
    return {"placer": placer, "task": task, "tables": list(tables)}


def test_a_fixed_models_rows_are_split_as_their_own_placements_of_dreamshard_are():
    rows = [line("dreamshard", "model", "a", "b"), line("neuroshard_columns", "model", "a[0:8]", "a[8:16]", "b")]
    split = [*rows, line("dreamshard", "variant-0", "a[0:8]", "a[8:16]")]
    whole, some = ({"model": "model", "rows": each} for each in (rows, split))
    assert not bench_fixed_model.is_split([whole], on_model=True)
    assert not bench_fixed_model.is_split([whole, some], on_model=True)
    assert bench_fixed_model.is_split([whole, some], on_model=False)


def test_a_fixed_models_gains_name_split_tables_in_their_text():
    gain = {"mean_gain": 0.1, "low": 0.05, "high": 0.2, "num_tasks": 9}
    gains = {"dreamshard": {"dim_greedy": gain}}
    report = {
        "reference": "dim_greedy",
        "gains": gains,
        "variant_gains": gains,
        "model": "model",
        "rows": [line("dreamshard", "variant-0", "a[0:8]", "a[8:16]")],
    }
    model, variants = bench_fixed_model.gains("saved", [report], None)
    assert "split" not in model["name"]
    assert variants["name"] == "- on 9 drifted variants, some tables split by columns (+5.0 to +20.0)"
