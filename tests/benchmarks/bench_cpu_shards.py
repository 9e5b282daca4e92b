"""How well costs of fbgemm's CPU kernels are learnt, from the measured shards that come with the package.

Nothing is measured here, so any machine gives the same errors. Two questions:

- single tables of 4 to 256 columns: a fifth of the *tables* is held out, in all widths;
- single tables and sets of up to 20: every fifth *shard* is held out, as in `shard_profiling.fit`, so that its tables are
  known in other widths and other sets.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dreamshard.cost_model import Normaliser, new_cost_network
from dreamshard.costs import CostSample
from dreamshard.prediction_metrics import mean_relative_error, rank_correlation
from dreamshard.shard_profiling.dataset import BUNDLED, distinct_tables, read_shards, samples_of
from dreamshard.shard_profiling.errors import best_factor, measured_ms, torchrec_ms
from dreamshard.shard_profiling.fit import ShardTraining, fit_network, learn_from_shards, predicted_ms
from dreamshard.testbeds.accelerators.specs import V100
from tests.benchmarks.held_out import LINEAR, Vector, shard_features
from tests.benchmarks.measuring import Row, row, spread

SHARDS = BUNDLED / "cpu_meta_2021.parquet"
HELD_OUT_EVERY = 5
RATES = {"structured": 4e-2, "paper": 3e-3}


@dataclass(frozen=True)
class Error:
    """Of predicted compute times of held-out single tables."""

    mape: float
    rank: float


def rows(quick: bool = False) -> Iterator[Row]:
    """Noise of the measurements, errors on tables that were held out, and errors on shards that were."""
    shards = read_shards(SHARDS)
    samples, seeds = samples_of(shards), (0,) if quick else (0, 1, 2)
    spreads = [100 * sample.spread_ms / sample.overall_ms for sample in samples]
    what = f"{len(samples)} shards on {samples[0].hardware}"
    yield row(f"{what}: spread of the repeats, median", float(np.median(spreads)), "IQR, % of the median")
    ratios = _again_over_first(samples)
    title = f"{len(ratios)} single tables measured again, minutes later"
    yield row(f"{title}: mean relative difference", 100 * float(np.abs(ratios - 1).mean()), "%")
    yield row(f"{title}: median of the second over the first", float(np.median(ratios)), "")
    alone = [sample for sample in samples if len(sample.task.tables) == 1]
    found = [_of_single_tables(alone, seed) for seed in seeds]
    for name in found[0]:
        errors, ranks = [100 * each[name].mape for each in found], [each[name].rank for each in found]
        title = f"{len(alone)} single tables, a fifth of the tables held out: {name}"
        yield row(f"{title}, error {spread(errors, 1, '%')}", sum(errors) / len(errors), "%")
        yield row(f"{title}, rank correlation {spread(ranks, 1, '')}", sum(ranks) / len(ranks), "")
    learnt = [learn_from_shards(shards, V100, ShardTraining(seed=seed, policy_rounds=1)).errors for seed in seeds]
    for errors_of in zip(*learnt, strict=True):
        first, ours = errors_of[0], [100 * error.mape for error in errors_of]
        paper = sum(100 * error.paper_mape for error in errors_of) / len(errors_of)
        title = f"shards of {first.tables} tables ({first.num_shards} held out): error {spread(ours, 1, '%')}"
        yield row(f"{title}; the paper's network {paper:.1f}", sum(ours) / len(ours), "%")


def _again_over_first(samples: Sequence[CostSample]) -> Vector:
    """Second time over the first of each table that was measured twice alone, in the same width."""
    first: dict[str, float] = {}
    ratios = []
    for sample in samples:
        if len(sample.task.tables) > 1:
            continue
        (name,) = sample.task.tables.names
        if name in first:
            ratios.append(sample.overall_ms / first[name])
        first.setdefault(name, sample.overall_ms)
    return np.asarray(ratios)


def _of_single_tables(samples: Sequence[CostSample], seed: int) -> dict[str, Error]:
    """Errors of each model on the tables of `HELD_OUT_EVERY`, fitted to the others."""
    names = sorted({_table(sample) for sample in samples})
    held = set(names[seed::HELD_OUT_EVERY])
    fitted = [sample for sample in samples if _table(sample) not in held]
    test = [sample for sample in samples if _table(sample) in held]
    measured = measured_ms(test).numpy()
    predicted: dict[str, Vector] = {}
    normaliser = Normaliser.fit(distinct_tables(fitted))
    for name, rate in RATES.items():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = new_cost_network("structured" if name == "structured" else "paper", normaliser)
        fit_network(network, fitted, normaliser, ShardTraining(seed=seed), rate)
        predicted[name] = predicted_ms(network, test, normaliser).double().numpy()
    design, unseen = (np.concatenate([shard_features(sample) for sample in part]) for part in (fitted, test))
    predicted[LINEAR] = unseen @ np.linalg.lstsq(design, measured_ms(fitted).numpy(), rcond=None)[0]
    ours, theirs = (torchrec_ms(part, V100.memory_bytes_per_s) for part in (fitted, test))
    if ours is not None and theirs is not None:
        predicted["TorchRec's estimator, with its best factor"] = (
            (theirs * best_factor(ours, measured_ms(fitted))).double().numpy()
        )
    return {
        name: Error(mean_relative_error(values, measured), rank_correlation(values, measured))
        for name, values in predicted.items()
    }


def _table(sample: CostSample) -> str:
    return sample.task.tables.names[0].partition("@")[0]
