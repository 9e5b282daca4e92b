"""Every placer on the law of four real GPUs (`tests/helpers/neuroshard_law.py`), on unseen tables, at 10x4 to 60x4.

Tasks are drawn as NeuroShard's: Meta's 2021 tables, dims of 4 to 128 alike, at most 15 GiB of tables for four devices of
4 GiB; a table that fits no device is not drawn. Placers that learn are trained once per seed, at 30x4, from 100 placements
measured with 2 % noise of each device and phase, and are placed at all sizes; `paper_1000` and `autoshard_1000` from 1,000.
`neuroshard_on_law` is NeuroShard's search on the law itself, which no other placer may query. `annealing` is long annealing
of whole tables on the law. Names that end in `_columns`, and `hugectr`, may split tables by columns.

A quarter of the tables is for choices; `--quick` places tasks of these. The others are split five times at random: half of
all tables to train on, a quarter for the test. Seed k trains on split k. A row says how much a placer saves over the best
heuristic on these tasks, with the 95 % interval of a bootstrap over seeds with their splits, and over the tasks of each.

NeuroShard's authors measured up to 15 tables on a device and six dims; here the networks predict all of NeuroShard's tasks,
so more tables and dims between. `outside` counts placements to which that applies.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dreamshard.cost_model.compiled import CURVE_VALUES, NUM_CURVES, PAPER, DeviceLaw, PaperLaw
from dreamshard.cost_model.exchanges import designed_exchanges
from dreamshard.search.packing import packed
from dreamshard.tables import Tables, concatenate
from dreamshard.tasks import NoPlacementError, PlacementTask
from tests.benchmarks.annealing import annealed_ms
from tests.benchmarks.contest import Contest, System, report, results
from tests.benchmarks.hugectr import HugeCtrPlanner
from tests.benchmarks.measuring import Row, Size, halves, meta_tables
from tests.benchmarks.neuroshard import NeuroShardPlacer
from tests.helpers.laws import BATCH, LawTestbed
from tests.helpers.neuroshard_law import DEVICES, DIMS, MOST_BYTES, NeuroShardLaw, neuroshard_folder, neuroshard_law
from tests.helpers.testbeds import RTX2080TI

SIZES, TRAINED, NOISE = tuple(Size(count, DEVICES) for count in range(10, 61, 10)), Size(30, DEVICES), 0.02
_TRAINING_TASKS, _COUNT, _SEEDS, _MOVES = 50, 8, 5, 30_000
_MOST_TASK_BYTES = 15 * 2**30
_CHANGES = 40  # per table, of a task that is drawn
_NARROWEST, _WIDEST = 10, 512  # mean dims per device of the all-to-alls measured alone


@dataclass(frozen=True)
class Cell:
    """A seed of training with its split of the tables."""

    seed: int
    quick: bool

    def pools(self) -> tuple[Tables, Tables]:
        """Tables to train on, and unseen ones."""
        half, others = halves(meta_tables("meta-dlrm-2021", "mixed"), seed=0)
        validation, quarter = halves(others, seed=1)
        rest = torch.randperm(len(half) + len(quarter), generator=torch.Generator().manual_seed(self.seed))
        pool = concatenate([half, quarter])
        train, test = pool.select(rest[: len(half)]), pool.select(rest[len(half) :])
        return train, validation if self.quick else test


def rows(quick: bool = False) -> Iterator[Row]:
    """Measure the seeds that the CSV lacks; then a row for each size and placer."""
    cells = [Cell(seed, quick) for seed in range(1 if quick else _SEEDS)]
    figures = report("real_gpu", ("seed",), cells, run, quick, nested=True)
    least = figures[figures.placer == "annealing"].set_index("size").costs
    for line in figures.itertuples():
        ratio = line.costs.mean() / least[line.size].mean()
        text = f"{line.size}: {line.placer} saves {line.gain} over {line.best}, {ratio:.3f} of annealing's cost"
        text += f"; measured {line.measurements:.0f} placements, {line.exchanges:.0f} all-to-alls; of "
        text += f"{line.costs.shape[1]} tasks per seed {line.packed:.1f} packed, {line.outside:.1f} outside"
        yield {"name": text, "value": 100 * line.gain.mean, "unit": "%"}


def run(cell: Cell, known: set[tuple[str, str]]) -> list[dict[str, Any]]:
    """Train every placer with a seed, and place all of its tasks, except the sizes and placers that are `known`."""
    law = neuroshard_law(neuroshard_folder(), wider=True)
    train, unseen = cell.pools()
    testbed, designed = LawTestbed(law, cell.seed, NOISE), designed_exchanges([DEVICES], None, 4 * BATCH * _WIDEST)
    wide = [exchange for exchange in designed if exchange.sent_bytes[0] >= 4 * BATCH * _NARROWEST]
    exchanges = list(map(testbed.measure_exchange, wide))
    drawn = draw_tasks(train, TRAINED, _TRAINING_TASKS, cell.seed)
    contest = Contest(train, drawn, testbed, exchanges, cell.seed)
    makers = contest.makers() | {"hugectr": partial(System, HugeCtrPlanner(RTX2080TI))}
    makers |= {f"{name}_1000": partial(contest.trained, name, times=10) for name in ("paper", "autoshard")}
    on_law: Any = LawSearch(law)
    for columns in (False, True):
        name = "neuroshard_on_law" + "_columns" * columns
        makers[name] = partial(System, NeuroShardPlacer(on_law, on_law, columns, name))
    sizes, count = (SIZES[::2], 4) if cell.quick else (SIZES, _COUNT)
    placed = {str(size): draw_tasks(unseen, size, count, 100 + cell.seed) for size in sizes}
    lines = [*results(makers, placed, known, law.true_ms, law.outside)]
    for size in [known_size for known_size in placed if (known_size, "annealing") not in known]:
        costs = " ".join(f"{annealed_ms(law, task, _MOVES):.7g}" for task in placed[size])
        lines.append({"size": size, "placer": "annealing", "costs_ms": costs})
    return [{"dims": "4 to 128", "seed": cell.seed} | row for row in lines]


def draw_tasks(pool: Tables, size: Size, count: int, seed: int) -> list[PlacementTask]:
    """Seeded tasks: all that fit are equally likely, by a Markov chain that changes one table and its dim at a time.

    NeuroShard draws until the tables have at most 15 GiB, which takes forever with 60 distinct ones that fit a device each.
    """
    generator, rows, drawn = np.random.default_rng(seed), pool.rows.numpy(), []
    while len(drawn) < count:
        index, dim = generator.choice(len(pool), size.tables, replace=False), np.full(size.tables, DIMS[0])
        sizes = 4 * rows[index] * dim
        for _ in range(_CHANGES * size.tables):
            t, other, wide = generator.integers(size.tables), generator.integers(len(pool)), generator.choice(DIMS)
            new = 4 * rows[other] * wide
            fits = new <= MOST_BYTES and sizes.sum() - sizes[t] + new <= _MOST_TASK_BYTES
            if fits and (other == index[t] or other not in index):
                index[t], dim[t], sizes[t] = other, wide, new
        drawn_tables = replace(pool.select(index), dim=torch.from_numpy(dim))
        task = PlacementTask(drawn_tables, size.devices, MOST_BYTES, "fp32", "sgd", f"{size}-{seed}-{len(drawn):03}")
        try:
            packed(task)
        except NoPlacementError:
            continue
        drawn.append(task)
    return drawn


@dataclass(frozen=True)
class LawSearch:
    """The law as a cost network and its normaliser at once, for NeuroShard's search; loads are latents, count and dim."""

    of: NeuroShardLaw

    def for_task(self, task: PlacementTask | Tables) -> "LawSearch":
        return self

    of_task = for_task

    def __call__(self, tables: Tables) -> Tensor:
        return torch.from_numpy(self.of.loads(tables)).roll(-2, dims=1)

    def ratios(self, task: PlacementTask, tables: Tables) -> None:
        return None

    def encode(self, loads: Tensor, ratios: None) -> Tensor:
        return loads

    def law(self, num_devices: int) -> DeviceLaw:
        """Compute of a device with tables."""
        (hidden, bias), (output, constant) = self.of.head
        latents, curves = hidden.shape[1], np.zeros((NUM_CURVES, len(CURVE_VALUES)))
        layers = np.ascontiguousarray(hidden.T), bias, np.ascontiguousarray(output.T), constant
        return DeviceLaw(PAPER, latents, latents, curves, paper=PaperLaw(*layers))

    def phases_ms(self, sums: Tensor) -> Tensor:
        """All compute as forward compute, of each of `[S, 1, L]`."""
        compute = [sum(self.of.compute_ms(load)) for load in sums.roll(2, dims=-1).numpy()[:, 0]]
        return torch.nn.functional.pad(torch.tensor(compute)[:, None, None], (0, 3))

    def overall_ms(self, sums: Tensor) -> Tensor:
        """`[C, G]` steps of `[C, G, D, L]`, with waits; infinite for placements that lack tables."""
        loads, steps = sums.roll(2, dims=-1).double().numpy(), np.full(sums.shape[:2], np.inf)
        counts = loads[..., 0].sum(axis=2)
        for at in np.argwhere(counts > counts.max() - 0.5):
            steps[tuple(at)] = self.of.devices_ms(loads[tuple(at)], waits=True).sum(axis=1).max()
        return torch.from_numpy(steps)
