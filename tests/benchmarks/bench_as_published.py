"""`paper` beside DreamShard's program and `autoshard` beside AutoShard's, round by round, on the law of four real GPUs.

`data/as_published.csv` has the curves of seeds 0 to 2: of the authors' programs (`program` authors), with the law instead of
their measurements and `zero_grad` as before torch 2, and of this project's. Tasks are 20 of Meta's 2021 tables with mixed dims
on four devices of 4 GiB; `test_ms` is the mean of 20 tasks of unseen tables, by the policy's greedy choices: the step of
DreamShard, with waiting in the forward all-to-all, and the slowest device's compute of AutoShard. `loss` is in ms² and
`reward` in ms; AutoShard's reward is the balance. A row is the mean over the seeds; the reference is the authors'.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from dreamshard.cost_model.cost_network import COMPUTE
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask
from dreamshard.training import TRAINING_ALGORITHMS, TrainingConfig, with_algorithm
from dreamshard.training.config import Algorithm
from tests.benchmarks.measuring import Row, row
from tests.benchmarks.pools import halves, meta_tables
from tests.helpers.neuroshard_law import neuroshard_folder, neuroshard_law
from tests.helpers.samples import sample_of_phases

CURVES = Path(__file__).parent / "data" / "as_published.csv"
TABLES, DEVICES, MEMORY_BYTES, SEEDS = 20, 4, 4 * 2**30, (0, 1, 2)


def rows(quick: bool = False) -> Iterator[Row]:
    """Each round's figures of both programs."""
    recorded = pd.read_csv(CURVES, comment="#").query("program == 'authors'")
    for algorithm in ("paper",) if quick else ("paper", "autoshard"):
        ours = pd.concat([curve(algorithm, seed) for seed in (SEEDS[:1] if quick else SEEDS)]).groupby("round").mean()
        theirs = recorded[recorded.algorithm == algorithm].drop(columns=["algorithm", "program"]).groupby("round").mean()
        for number, figures in ours.iterrows():
            for what, unit in (("loss", "ms²"), ("reward", ""), ("test_ms", "ms")):
                name = f"{algorithm}, round {number}, {figures.measured:.0f} placements (authors: {theirs.measured[number]:.0f})"
                yield row(f"{name}: {what}", float(figures[what]), unit, reference=float(theirs[what][number]))


def curve(algorithm: Algorithm, seed: int) -> pd.DataFrame:
    """A training's rounds."""
    config, method = with_algorithm(TrainingConfig(), algorithm), TRAINING_ALGORITHMS[algorithm]
    law = neuroshard_law(neuroshard_folder(), wider=True)
    pool, unseen = pools()
    tasks, held_out, samples, found = drawn(pool, 50, 0), drawn(unseen, 20, 1), [], []
    state: Any = method.start(pool, config, seed)
    for number in range(config.iterations):
        for task, placement in method.propose(state, tasks):
            samples.append(sample_of_phases(task, placement, law.phases_ms(task, placement, waits=True)))
        loss, reward = method.fit(state, samples).loss, method.improve(state, tasks).reward
        counted, placer = list(range(4)), method.placer(state)
        if algorithm == "autoshard":
            counted, loss = COMPUTE, loss * float(state.cost_network.unit_ms) ** 2
        costs = [law.phases_ms(task, placer.place(task), waits=True)[:, counted].sum(dim=1).amax() for task in held_out]
        about = {"round": number + 1, "measured": len(samples), "loss": loss, "reward": reward}
        found.append(about | {"test_ms": float(torch.stack(costs).mean())})
    return pd.DataFrame(found)


def pools() -> tuple[Tables, Tables]:
    """Tables to train on and unseen ones; all have lookups and fit half a device."""
    tables = meta_tables("meta-dlrm-2021", "mixed")
    train, unseen = halves(tables.select(((tables.rows * tables.dim < 2**29) & (tables.lookups > 0)).nonzero()[:, 0]), 0)
    return train, unseen


def drawn(pool: Tables, count: int, seed: int) -> list[PlacementTask]:
    """Seeded tasks of distinct tables."""
    generator = torch.Generator().manual_seed(seed)
    chosen = [torch.randperm(len(pool), generator=generator)[:TABLES] for _ in range(count)]
    return [PlacementTask(pool.select(each), DEVICES, MEMORY_BYTES, name=f"task-{i:03}") for i, each in enumerate(chosen)]
