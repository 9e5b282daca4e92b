"""Learning from shards: held-out error by number of tables, compared with the paper's network and TorchRec's estimator.

This needs no GPU and says nothing about one: the shards are the first that `shard_profiling.collect` would measure, costed
by the roofline with 1 % noise. The report of `shard_profiling.publish` has the figures of a real collection.
"""

from collections.abc import Iterator

from dreamshard.shard_profiling.dataset import parquet_bytes
from dreamshard.shard_profiling.fit import ShardTraining, learn_from_shards
from dreamshard.testbeds.accelerators.specs import H200
from tests.benchmarks.measuring import Row, row, spread
from tests.helpers.shards import simulated_shards

SHARDS = 3000
BAR = 5.0


def rows(quick: bool = False) -> Iterator[Row]:
    """One row per number of tables, averaged over the seeds; then the size of the data."""
    shards = simulated_shards(300 if quick else SHARDS)
    seeds = (0,) if quick else (0, 1, 2)
    found = [learn_from_shards(shards, H200, ShardTraining(seed=seed)).errors for seed in seeds]
    for errors in zip(*found, strict=True):
        first, ours = errors[0], [100 * error.mape for error in errors]
        paper = sum(100 * error.paper_mape for error in errors) / len(errors)
        rivals = f"the paper's network {paper:.1f}"
        if first.torchrec_mape is not None and first.torchrec_scaled_mape is not None:
            rivals += f", TorchRec's estimator {100 * first.torchrec_mape:.0f}"
            rivals += f", with its best factor {100 * first.torchrec_scaled_mape:.0f}"
        name = f"{len(shards)} simulated shards, {first.tables} tables ({first.num_shards} held out): error"
        yield row(f"{name} {spread(ours, 1, '%')}; {rivals}", sum(ours) / len(ours), "%", BAR)
    yield row(f"{len(shards)} shards as package data", len(parquet_bytes(shards)) / 1e6, "MB", 5.0)
