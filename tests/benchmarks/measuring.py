"""Shared by the benchmarks: Meta's tables by their published statistics, tasks, training by a law, true costs, and gains."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dreamshard.cost_model.exchanges import designed_exchanges
from dreamshard.tables import Placement, Tables, concatenate
from dreamshard.tasks import PlacementTask, violation
from dreamshard.training import TrainingConfig, TrainingState
from dreamshard.workloads.workload import MIXED_DIMS, MIXED_WEIGHTS, population
from tests.helpers.laws import NOISE, SIMULATED, Law, LawTestbed
from tests.helpers.trained import learn

Dims = Literal["dim16", "mixed"]
Memory = Literal["generous", "tight", "paper"]
Split = Literal["train", "validation", "test"]
_MEMORY = {"generous": (3.0, 1.5, 0), "tight": (1.2, 1.05, 0), "paper": (1.5, 1.2, 5 * 2**30)}
"""Of a device: multiples of an even share and of the largest table, and the least (the paper's section 4.1 has 5 GiB)."""
ALL_DIMS: tuple[Dims, ...] = ("dim16", "mixed")


@dataclass(frozen=True, order=True)
class Size:
    """Tables and devices of a task."""

    tables: int
    devices: int

    def __str__(self) -> str:
        return f"{self.tables}x{self.devices}"


TRAINED = Size(50, 4)


@cache
def meta_tables(source: str, dims: Dims) -> Tables:
    """All tables of a Meta data set from its fitted population: rows, lookups and distinct rows per bin."""
    tables = population(source)
    unique = tables.rows_by_bin.sum(axis=1)
    drawn = np.random.default_rng([0, 1]).choice(MIXED_DIMS, len(unique), p=MIXED_WEIGHTS)
    means = np.array([2**j // 2 + 1 + (1 - law[:-1]).sum() for j, law in enumerate(tables.laws)])  # counts in each bin
    lookups = np.maximum(np.rint(tables.rows_by_bin @ means).astype(np.int64), unique)
    sizes = tables.rows, np.full(len(unique), 16) if dims == "dim16" else drawn, lookups / tables.batch_size
    columns = *sizes, tables.rows_by_bin / np.maximum(unique, 1)[:, None], lookups, unique
    return Tables(tuple(f"{source}/t{t:04}" for t in range(len(unique))), *map(torch.from_numpy, columns))


def pool_of(dims: Dims, split: Split) -> Tables:
    """Half of the 2021 tables to train on, a quarter for choices, or the last quarter and all 2022 tables as the test."""
    train, rest = halves(meta_tables("meta-dlrm-2021", dims), seed=0)
    if split == "train":
        return train
    validation, test = halves(rest, seed=1)
    return validation if split == "validation" else concatenate([test, meta_tables("meta-dlrm-2022", dims)])


def halves(pool: Tables, seed: int) -> tuple[Tables, Tables]:
    """The pool in two at random, as in the paper, each in its order."""
    drawn = torch.randperm(len(pool), generator=torch.Generator().manual_seed(seed)).split(len(pool) // 2)
    return pool.select(drawn[0].sort().values), pool.select(torch.cat(drawn[1:]).sort().values)


def tasks(
    dims: Dims, split: Split, size: Size, count: int, seed: int, memory: Memory = "generous"
) -> list[PlacementTask]:
    """Seeded tasks of distinct tables of `pool_of`, repeated if it has too few."""
    numbered = enumerate(drawn(repeated(pool_of(dims, split), size.tables), size, count, seed))
    return [task_of(tables, size.devices, f"{size}-{memory}-{seed}-{i:03}", memory) for i, tables in numbered]


def drawn(pool: Tables, size: Size, count: int, seed: int) -> list[Tables]:
    """Seeded draws of distinct tables."""
    generator = torch.Generator().manual_seed(seed)
    return [pool.select(torch.randperm(len(pool), generator=generator)[: size.tables]) for _ in range(count)]


def task_of(tables: Tables, num_devices: int, name: str, memory: Memory = "generous") -> PlacementTask:
    """A task whose devices have some multiple of an even share of memory, and room for the largest table."""
    slack, largest_slack, least = _MEMORY[memory]
    table_bytes = PlacementTask(tables, 1, 0, "fp16").table_bytes.double()
    room = max(slack * float(table_bytes.sum()) / num_devices, largest_slack * float(table_bytes.max()), least)
    return PlacementTask(tables, num_devices, int(room), "fp16", "sgd", name)


def repeated(pool: Tables, count: int) -> Tables:
    """At least `count` tables: the pool as often as that takes, under new names where it is more than once."""
    times = -(-count // len(pool))
    copies = [replace(pool, names=tuple(f"{name}#{copy}" for name in pool.names)) for copy in range(times)]
    return pool if times == 1 else concatenate(copies)


Row, Place = dict[str, Any], Callable[[PlacementTask], Placement]
Costs = NDArray[np.float64]
_DRAWS = 4000  # of a bootstrap
PLACED_ON = (4, 8, 128)
"""Numbers of devices of the tasks that placers are judged on."""
EXCHANGED_BYTES = 2**27  # more than a device sends at 800x128


class Gain(NamedTuple):
    """Share of the cost that is saved, with its 95 % interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.mean:.1f} % ({100 * self.low:.1f} to {100 * self.high:.1f})"


def gain_over(costs: Costs, reference: Costs, *, nested: bool = False) -> Gain:
    """Savings of `costs` `[S, T]` of seeds and tasks over `reference` `[S, T]`.

    The mean is of logarithms of ratios, as in `dreamshard.evaluation.PairedComparison`.

    If all seeds place the same tasks, seeds and tasks are resampled independently (a two-way bootstrap). If tasks are
    `nested`, so that each seed has tasks of its own, seeds are resampled, and the tasks of each.
    """
    logs, generator, (seeds, tasks) = np.log(reference / costs), np.random.default_rng(0), costs.shape
    of_seeds = generator.multinomial(seeds, np.full(seeds, 1 / seeds), _DRAWS)[:, :, None]  # [N, S, 1]
    times = _DRAWS, seeds if nested else 1
    of_tasks = generator.multinomial(tasks, np.full(tasks, 1 / tasks), times)  # [N, S or 1, T]
    drawn = (of_seeds * of_tasks * logs).sum(axis=(1, 2)) / (seeds * tasks)  # [N]
    low, high = np.quantile(drawn, (0.025, 0.975))
    return Gain(*(float(-np.expm1(-log)) for log in (logs.mean(), low, high)))


def row(name: str, value: float, unit: str, bar=None, reference=None) -> Row:
    """One line of the table; `ratio` above 1 beats the bar, or the reference if there is no bar."""
    against = bar if bar is not None else reference
    ratio = None if against is None or not value else against / value
    return {"name": name, "value": value, "unit": unit, "bar": bar, "reference": reference, "ratio": ratio}


@cache
def trained(dims: Dims, seed: int, law: Law = SIMULATED) -> TrainingState:
    """A state trained at 50x4 by a law from 100 placements; read-only."""
    return law_state(dims, seed, law, TrainingConfig())


def law_state(dims: Dims, seed: int, law: Law, config, method=None, *, exchanges=True, noise=NOISE) -> TrainingState:
    """A state trained at 50x4 by a law, as in Algorithm 1; `method` instead of the algorithm that `config` names.

    Ten all-to-alls of each number of devices in `PLACED_ON` are measured as well, unless there are to be no `exchanges`.
    """
    testbed, drawn_tasks = LawTestbed(law, seed, noise), tasks(dims, "train", TRAINED, 50, seed=5)
    designed = designed_exchanges(PLACED_ON, None, EXCHANGED_BYTES) if exchanges else []
    how = {"exchanges": [testbed.measure_exchange(exchange) for exchange in designed], "method": method}
    return learn(pool_of(dims, "train"), drawn_tasks, config, seed, testbed, **how).state


def true_ms(law: Law, tasks: Sequence[PlacementTask], place: Place) -> Costs:
    """`[T]` true costs; raises AssertionError if a placement is illegal."""
    placed = [(task, place(task)) for task in tasks]
    assert not any(violation(*pair) for pair in placed), f"an illegal placement of {tasks[0].name} or the like"
    return np.array([law.true_ms(*pair) for pair in placed])


def relative(name: str, costs: Costs, reference: Costs, bar: float | None = None) -> Row:
    """Mean cost over the mean reference `[S, T]`; the text has the 95 % interval."""
    gain = gain_over(costs, reference)
    interval = f" ({1 - gain.high:.3f} to {1 - gain.low:.3f}, {len(costs)} seeds)"
    return row(name + interval, float(costs.mean() / reference.mean()), "", bar)
