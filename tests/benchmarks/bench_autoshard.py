"""AutoShard on what it optimises: compute of the slowest device, and balance, on unseen tables of the simulated testbed.

Trained from 100 placements measured with noise, at two sizes: the authors' (`gen_dlrm_data.py`: 80 tables with dims 16 and
32, 8 devices) and this project's (50 tables with mixed dims, 4 devices). Placed at these and other sizes without further
training. Costs are true: forward and backward compute of the slowest device, without communication.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch

from dreamshard.placer import Placer
from dreamshard.search.baselines import RULES_OF_THUMB, baselines
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask
from dreamshard.training import TrainingConfig, with_algorithm
from tests.benchmarks.gains import gain_over
from tests.benchmarks.measuring import Row, row, spread
from tests.benchmarks.pools import TRAINED, Size, pools, tasks
from tests.helpers.testbeds import device_costs, simulated
from tests.helpers.trained import learn, make_placer

EXACT, CONFIG = simulated(noise=0.0), with_algorithm(TrainingConfig(), "autoshard")


@dataclass(frozen=True)
class Setting:
    """Tables and size of a training, and the other sizes that it places."""

    dims: str
    trained: Size
    others: tuple[Size, ...]


OWN = Setting("mixed dims", TRAINED, (Size(20, 4), Size(100, 8), Size(200, 8)))
AUTHORS = Setting("dims 16 and 32", Size(80, 8), (Size(40, 8), Size(80, 4), Size(200, 16)))


def rows(quick: bool = False) -> Iterator[Row]:
    """Compute of the slowest device against the best rule of thumb, for each size."""
    seeds, count = ((0,), 3) if quick else ((0, 1, 2), 40)
    for setting in (OWN,) if quick else (OWN, AUTHORS):
        train, unseen = _pools(setting.dims)
        drawn = tasks(train, setting.trained, 50, seed=5)
        learned = [learn(train, drawn, CONFIG, seed, simulated()) for seed in seeds]
        name = f"trained at {setting.trained}, {setting.dims}"
        for size in (setting.trained, *setting.others):
            held_out = tasks(unseen, size, count, seed=300)
            yield _row(f"{name}, placed at {size}", [make_placer(each.state) for each in learned], held_out)
        seconds = [each.cpu_s for each in learned]
        yield row(f"{name}: CPU time of training {spread(seconds, 1, 's')}", statistics.mean(seconds), "s", 60.0)


def _row(name: str, placers: Sequence[Placer], held_out: Sequence[PlacementTask]) -> Row:
    own = np.stack([_device_ms(placer, held_out) for placer in placers])  # [S, T, D]
    rules = {rule: _device_ms(baselines()[rule], held_out).max(axis=-1) for rule in RULES_OF_THUMB}  # [T]
    best = min(rules, key=lambda rule: float(rules[rule].mean()))
    slowest, balance = own.max(axis=-1), (own.min(axis=-1) / own.max(axis=-1)).mean()
    gain = gain_over(slowest, np.broadcast_to(rules[best], slowest.shape))
    what = f"{name}: compute of the slowest device, balance {balance:.2f}, saves {gain} over {best}"
    return row(what, float(slowest.mean()), "ms", None, float(rules[best].mean()))


def _device_ms(placer: Placer, drawn: Sequence[PlacementTask]) -> np.ndarray:
    """`[T, D]` true compute of every device, task by task."""
    found = []
    for task in drawn:
        device = placer.place(task).device[None]
        costs = device_costs(EXACT, task.tables, device, task.num_devices, task.precision, task.optimizer)
        found.append((costs.phases_ms[..., 0] + costs.phases_ms[..., 3])[0].numpy())
    return np.stack(found)


@cache
def _pools(dims: str) -> tuple[Tables, Tables]:
    """Training tables and unseen ones."""
    if dims == OWN.dims:
        return pools("mixed")
    generator = torch.Generator().manual_seed(0)

    def drawn(tables: Tables) -> Tables:
        return replace(tables, dim=torch.tensor([16, 32])[torch.randint(2, (len(tables),), generator=generator)])

    train, test = pools("dim16")
    return drawn(train), drawn(test)
