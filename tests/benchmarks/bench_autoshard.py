"""AutoShard on what it optimises: compute of the slowest device, and balance, on unseen tables of the simulated testbed.

Trained from 100 placements measured with noise, at two sizes: that of the authors' program (`gen_dlrm_data.py`: 80 tables
with dims 16 and 32, 8 devices), and the project's own (50 tables with mixed dims, 4 devices). Placed at these and other sizes
without further training. Costs are true ones: forward and backward compute of the slowest device, without communication.
Greedy on the true cost is a bound on what any prediction can give a greedy choice. What is saved over the rule has a 95 %
interval over tasks and seeds (`gains.py`). Seeds are trained side by side.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context

import numpy as np
import torch

from dreamshard.autoshard import AutoShardPlacer
from dreamshard.costs import CostSample
from dreamshard.placement import Placement
from dreamshard.placer import Placer
from dreamshard.search.baselines import RULES_OF_THUMB, baselines
from dreamshard.shards import violation
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask
from dreamshard.training import TrainingConfig, with_algorithm
from tests.benchmarks.gains import gain_over
from tests.benchmarks.measuring import Row, row, spread
from tests.benchmarks.pools import TRAINED, Size, pools, tasks
from tests.helpers.testbeds import device_costs, simulated
from tests.helpers.trained import fit_costs, improve_policy, make_placer, propose, start_training

EXACT = simulated(noise=0.0)
SEEDS, COUNT, QUICK_COUNT = (0, 1, 2), 40, 3


@dataclass(frozen=True)
class Setting:
    """What is trained on, and at which other sizes it is placed."""

    dims: str
    size: Size
    others: tuple[Size, ...]

    def __str__(self) -> str:
        return f"trained at {self.size}, {self.dims}"


AUTHORS = Setting("dims 16 and 32", Size(80, 8), (Size(40, 8), Size(80, 4), Size(200, 16)))
OWN = Setting("mixed dims", TRAINED, (Size(20, 4), Size(100, 8), Size(200, 8)))


@dataclass(frozen=True)
class Judged:
    """Of the same tasks of one size: compute of the slowest device, and means of the least over the largest."""

    by_task_ms: tuple[float, ...]
    balance: float
    place_ms: float

    @property
    def compute_ms(self) -> float:
        """Mean over the tasks."""
        return statistics.mean(self.by_task_ms)


def rows(quick: bool = False) -> Iterator[Row]:
    """Compute of the slowest device against the best rule of thumb, for each size."""
    seeds, count = (SEEDS[:1], QUICK_COUNT) if quick else (SEEDS, COUNT)
    for setting in (OWN,) if quick else (OWN, AUTHORS):
        with ProcessPoolExecutor(len(seeds), get_context("spawn")) as processes:
            found = list(processes.map(_seed, [(setting, seed, count) for seed in seeds]))
        for size in (setting.size, *setting.others):
            yield _row(setting, size, count, [by_size[str(size)] for by_size, _ in found])
        seconds = [cpu for _, cpu in found]
        yield row(f"{setting}: CPU time of training {spread(seconds, 1, 's')}", statistics.mean(seconds), "s", 60.0)


def _row(setting: Setting, size: Size, count: int, ours: Sequence[Judged]) -> Row:
    drawn = heldout(setting, size, count)
    rules = {name: judged(placer, drawn) for name, placer in baselines().items()}
    best = min(RULES_OF_THUMB, key=lambda name: rules[name].compute_ms)
    greedy, saved = judged(TrueGreedy(), drawn), saved_over(rules[best], ours)
    costs = [each.compute_ms for each in ours]
    others = ", ".join(f"{name} {each.compute_ms:.3g} ({each.balance:.2f})" for name, each in rules.items())
    balance, place_ms = (statistics.mean(getattr(each, name) for each in ours) for name in ("balance", "place_ms"))
    what = (
        f"{setting}, placed at {size}: compute of the slowest device {spread(costs, 1, 'ms')}, balance {balance:.2f}, "
        f"saves {saved} %, places in {place_ms:.3g} ms CPU; {others}; "
        f"greedy on the true cost {greedy.compute_ms:.3g} ({greedy.balance:.2f}); reference: {best}"
    )
    return row(what, statistics.mean(costs), "ms", None, rules[best].compute_ms)


def saved_over(other: Judged | Sequence[Judged], ours: Sequence[Judged]) -> str:
    """Percent of the compute of another, one for all seeds or one for each, that ours saves: `7.7 (3.7 to 11.2)`.

    Behind it is the 95 % interval over tasks and seeds.
    """
    others = [other] * len(ours) if isinstance(other, Judged) else other
    gain = gain_over(*(np.array([each.by_task_ms for each in some]) for some in (ours, others)))
    assert gain.mean is not None
    assert gain.low is not None
    assert gain.high is not None
    return f"{100 * gain.mean:.1f} ({100 * gain.low:.1f} to {100 * gain.high:.1f})"


def _seed(job: tuple[Setting, int, int]) -> tuple[dict[str, Judged], float]:
    """Train one seed; returns its figures by size, and the CPU seconds of training."""
    setting, seed, count = job
    torch.set_num_threads(1)
    began = time.process_time()
    placer = trained(setting, seed)
    seconds = time.process_time() - began
    sizes = (setting.size, *setting.others)
    return {str(size): judged(placer, heldout(setting, size, count)) for size in sizes}, seconds


def trained(setting: Setting, seed: int, config: TrainingConfig | None = None) -> AutoShardPlacer:
    """Trained from placements measured with noise, 100 by default."""
    pool, testbed = _pools(setting)[0], simulated()
    drawn = tasks(pool, setting.size, 50, seed=5)
    state = start_training(pool, config or with_algorithm(TrainingConfig(), "autoshard"), seed)
    samples: list[CostSample] = []
    for _ in range(state.config.iterations):
        samples += [testbed.measure(task, placement) for task, placement in propose(state, drawn)]
        fit_costs(state, samples)
        improve_policy(state, drawn)
    return make_placer(state)


@cache
def _pools(setting: Setting) -> tuple[Tables, Tables]:
    """Training tables and unseen ones."""
    if setting.dims == OWN.dims:
        return pools("mixed")
    generator = torch.Generator().manual_seed(0)

    def drawn(tables: Tables) -> Tables:
        return replace(tables, dim=torch.tensor([16, 32])[torch.randint(2, (len(tables),), generator=generator)])

    train, test = pools("dim16")
    return drawn(train), drawn(test)


def heldout(setting: Setting, size: Size, count: int) -> list[PlacementTask]:
    """Tasks of unseen tables."""
    return tasks(_pools(setting)[1], size, count, seed=300)


def judged(placer: Placer, drawn: Sequence[PlacementTask]) -> Judged:
    compute, balance, seconds = [], [], 0.0
    for task in drawn:
        began = time.process_time()
        placement = placer.place(task)
        seconds += time.process_time() - began
        if violation(task, placement):
            raise AssertionError(f"{placer.name} placed {task.name} illegally")
        device_ms = compute_ms(task, placement.device[None])[0]
        compute.append(float(device_ms.max()))
        balance.append(float(device_ms.min() / device_ms.max()))
    return Judged(tuple(compute), statistics.mean(balance), 1e3 * seconds / len(drawn))


def compute_ms(task: PlacementTask, device: torch.Tensor, chosen: torch.Tensor | None = None) -> torch.Tensor:
    """`[B, D]` true compute of placements of the task's tables, or of the chosen ones."""
    tables = task.tables if chosen is None else task.tables.select(chosen)
    costs = device_costs(EXACT, tables, device, task.num_devices, task.precision, task.optimizer)
    return costs.forward_compute_ms + costs.backward_compute_ms


class TrueGreedy:
    """Descending in the true compute alone, each table to the device whose true compute is least with it."""

    name = "true_greedy"

    def place(self, task: PlacementTask, budget_ms: float | None = None) -> Placement:
        """Raises AssertionError where no device has room."""
        count, num_devices = len(task.tables), task.num_devices
        alone = torch.stack(
            [compute_ms(task, torch.zeros(1, 1, dtype=torch.int64), torch.tensor([t]))[0, 0] for t in range(count)]
        )
        order, table_bytes = torch.argsort(alone, descending=True), task.table_bytes
        used, device = torch.zeros(num_devices, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
        every = torch.arange(num_devices)
        for i, t in enumerate(order.tolist()):
            candidates = torch.cat([device.expand(num_devices, -1), every[:, None]], dim=1)  # [D, i + 1]
            with_table = compute_ms(task, candidates, order[: i + 1])[every, every]
            fits = used + table_bytes[t] <= task.memory_bytes
            assert fits.any()
            choice = with_table.masked_fill(~fits, torch.inf).argmin()
            used[choice] += table_bytes[t]
            device = torch.cat([device, choice[None]])
        return Placement.whole(torch.empty_like(device).scatter_(0, order, device), num_devices)
