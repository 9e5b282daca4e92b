"""`paper` beside DreamShard's program and `autoshard` beside AutoShard's, round by round, on the law of four real GPUs.

`data/as_published.csv` has the curves: of the authors' programs (`program` authors), with the law instead of measurements and
`zero_grad` as before torch 2, and of this one. Tasks are 20 of Meta's 2021 tables, mixed dims, four devices of 4 GiB.
`test_ms` is the mean of 20 tasks of unseen tables, by greedy choices: DreamShard's step, with waiting in the forward
all-to-all; AutoShard's slowest compute. `loss` is in ms²; AutoShard's reward is the balance. A row is a mean over the seeds.
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
from tests.benchmarks.measuring import Row, Size, drawn, halves, meta_tables, row
from tests.helpers.neuroshard_law import neuroshard_folder, neuroshard_law
from tests.helpers.samples import sample_of_phases

CURVES = Path(__file__).parent / "data" / "as_published.csv"


def rows(quick: bool = False) -> Iterator[Row]:
    """Each round's figures; the reference is the authors'."""
    recorded = pd.read_csv(CURVES, comment="#").query("program == 'authors'").drop(columns="program")
    for algorithm in ("paper", "autoshard"):
        theirs = recorded[recorded.algorithm == algorithm].drop(columns="algorithm").groupby("round").mean()
        ours = pd.concat([curve(algorithm, seed) for seed in ((0,) if quick else (0, 1, 2))]).groupby("round").mean()
        for number, ours_of in ours.iterrows():
            for what in ("measured", "loss", "reward", "test_ms"):
                name = f"{algorithm}, round {number}: {what}"
                yield row(name, ours_of[what], "", reference=float(theirs[what][number]))


def curve(algorithm: Any, seed: int) -> pd.DataFrame:
    """The rounds of a training."""
    config, method = with_algorithm(TrainingConfig(), algorithm), TRAINING_ALGORITHMS[algorithm]
    law, tables = neuroshard_law(neuroshard_folder(), wider=True), meta_tables("meta-dlrm-2021", "mixed")
    able = (tables.rows * tables.dim < 2**29) & (tables.lookups > 0)  # fit half a device
    pool, unseen = halves(tables.select(able.nonzero()[:, 0]), 0)
    tasks, held_out, samples, lines = drawn_tasks(pool, 50, 0), drawn_tasks(unseen, 20, 1), [], []
    state: Any = method.start(pool, config, seed)
    for number in range(config.iterations):
        for task, placement in method.propose(state, tasks):
            samples.append(sample_of_phases(task, placement, law.phases_ms(task, placement, waits=True)))
        loss, reward = method.fit(state, samples).loss, method.improve(state, tasks).reward
        counted, placer, unit_ms = [0, 1, 2, 3], method.placer(state), 1.0
        if algorithm == "autoshard":
            counted, unit_ms = COMPUTE, float(state.cost_network.unit_ms)
        costs = [law.phases_ms(task, placer.place(task), waits=True)[:, counted].sum(dim=1).amax() for task in held_out]
        about = {"round": number + 1, "measured": len(samples), "loss": loss * unit_ms**2, "reward": reward}
        lines.append(about | {"test_ms": float(torch.stack(costs).mean())})
    return pd.DataFrame(lines)


def drawn_tasks(pool: Tables, count: int, seed: int) -> list[PlacementTask]:
    """Seeded tasks of distinct tables."""
    drawn_tables = enumerate(drawn(pool, Size(20, 4), count, seed))
    return [PlacementTask(tables, 4, 4 * 2**30, name=f"task-{i:03}") for i, tables in drawn_tables]
