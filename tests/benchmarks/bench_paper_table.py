"""The paper's main table: every placer at many sizes, on unseen tables of the simulated testbed.

Every placer that learns has the same number of measurements, with 1 % noise, of tasks of its size; those trained at 50x4 are
placed at 800x128 too, except `rnn`, which places only on as many devices as it was trained on. Placements are judged by
exact costs. A row says how much a placer saves over the best rule of thumb, chosen on these very tasks, with its 95 %
interval over tasks and seeds. Names that end in `_columns` may split tables by columns; all others keep them whole.

Half of Meta's 2021 tables are for training. A quarter of them, and all 2022 tables, are the test, to be looked at once. The
last quarter is for choices, and `--quick`, which takes about two minutes, places tasks of these.

The whole takes hours on two cores. A cell is one training of all placers with one seed. Its rows are in `paper_table.csv` as
soon as it ends, and cells that are there are not measured again: the same command continues, and a file that is removed is
measured again. Beside the CSV, `paper_table.md` has the tables of RESULTS and README. Both are in `tests/benchmarks/data`,
or in `.benchmarks` with `--quick`.
"""

import multiprocessing
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch

from dreamshard.cost_model.exchanges import exchanges_for
from dreamshard.costs import CostSample
from dreamshard.files.atomic import replacing
from dreamshard.files.text import markdown_table
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.placer import NoPlacementError, Placer
from dreamshard.rivals import OF_TORCHREC, ON_NETWORK, installed_rivals, rival, train_rnn
from dreamshard.search import GreedyCostPlacer
from dreamshard.search.baselines import RULES_OF_THUMB, baselines
from dreamshard.shards import violation
from dreamshard.tables import Tables, concatenate
from dreamshard.task_sets.sampling import split_tables
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.simulated import SimulatedTestbed
from dreamshard.training import TrainingConfig, with_algorithm
from dreamshard.training.config import Algorithm
from flows.runtime.source_revision import source_revision
from tests.benchmarks.gains import Costs, Gain, gain_over
from tests.benchmarks.measuring import Row
from tests.benchmarks.pools import ALL_DIMS, BATCH, Dims, Size, meta_tables, repeated
from tests.helpers.trained import fit_costs, improve_policy, make_placer, propose, start_training

RTX2080TI = PRESETS["rtx2080ti"]

DATA = Path(__file__).parent / "data"
QUICK = Path(__file__).parents[2] / ".benchmarks"

SIZES = (Size(20, 4), Size(50, 4), Size(100, 8), Size(200, 8))
PAPER_SIZE, LARGE = Size(50, 4), Size(800, 128)
AS_TRAINED = ("rnn", "neuroshard_columns", "torchrec_planner_columns")
"""Placers of tasks of their training's size only: `rnn` has one output per device, the others take minutes at 800x128."""

_TRAINING_TASKS, _ROUNDS = 50, 10  # as in the paper
_TRAINING_SEED, _PLACED_SEED = 5, 200
_PAPER_BYTES = 5 * 2**30  # memory of a device in the paper (its section 4.1)
_EVEN_SHARE, _LARGEST = 1.5, 1.2  # of a device's memory, if 5 GiB hold less than these

Split = Literal["train", "validation", "test"]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One training of every placer, and the sizes of the tasks that these place."""

    dims: Dims
    trained: Size
    placed: tuple[Size, ...]
    seed: int
    split: Split = "test"
    measurements: int = 100
    num_tasks: int | None = None  # 30 up to 100 tables, 10 beyond

    @property
    def key(self) -> tuple[str, str, int]:
        """The columns of the CSV that name it."""
        return self.dims, str(self.trained), self.seed

    def tasks(self, size: Size) -> list[PlacementTask]:
        """The tasks to place."""
        count = self.num_tasks or (30 if size.tables <= 100 else 10)
        return draw_tasks(pool_of(self.dims, self.split), f"{self.dims}-{self.split}", size, count, _PLACED_SEED)


@dataclass(frozen=True, kw_only=True)
class Result:
    """A row of the CSV: one placer of a cell on all tasks of one size.

    Attributes:
        costs_ms: exact cost of each task, with spaces between; inf if no legal placement was found.
        place_ms: median CPU time to place a task.
        learning_s: CPU time of learning, without measuring.
        measurements: placements that it learned from.
    """

    dims: str
    trained: str
    placed: str
    seed: int
    placer: str
    measurements: int
    learning_s: float
    place_ms: float
    costs_ms: str
    commit: str

    @property
    def setting(self) -> tuple[str, str, str]:
        """Results with the same one are comparable."""
        return self.dims, self.placed, self.trained


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A placer in one setting, over all seeds; `gain` is over the best rule of thumb."""

    dims: str
    placed: str
    trained: str
    placer: str
    gain: Gain
    place_ms: float
    learning_s: float

    @property
    def size(self) -> str:
        """Of the tasks that it placed, and of those that it was trained on if these differ."""
        return self.placed if self.placed == self.trained else f"{self.placed}, trained at {self.trained}"

    @property
    def saved(self) -> str:
        """The gain as text."""
        if self.gain.mean is None or self.gain.low is None or self.gain.high is None:
            return "did not fit"
        return f"{100 * self.gain.mean:.1f} % ({100 * self.gain.low:.1f} to {100 * self.gain.high:.1f})"


@dataclass(frozen=True, kw_only=True)
class System:
    """A placer that is ready; None if it found nothing to learn from."""

    placer: Placer | None
    learning_s: float = 0.0
    measurements: int = 0


def rows(quick: bool = False) -> Iterator[Row]:
    """Measure the cells that the CSV lacks; then a row for each setting and placer."""
    folder = QUICK if quick else DATA
    file = folder / "paper_table.csv"
    results = read(file)
    known = {(each.dims, each.trained, each.seed) for each in results}
    for found in _measured([cell for cell in cells(quick) if cell.key not in known]):
        results += found
        write(file, results)
    figures = summarised(results)
    (folder / "paper_table.md").write_text(_tables(figures), encoding="utf-8")
    for figure in figures:
        mean = None if figure.gain.mean is None else 100 * figure.gain.mean
        times = f"learns in {figure.learning_s:.3g} s CPU, places in {figure.place_ms:.3g} ms"
        name = (
            f"{figure.size}, {figure.dims}: {figure.placer} saves over the best rule of thumb {figure.saved}; {times}"
        )
        yield {"name": name, "value": mean, "unit": "" if mean is None else "%"}


def cells(quick: bool) -> list[Cell]:
    """The cells, those that take long first."""
    if quick:
        return [
            Cell(
                dims="mixed",
                trained=Size(20, 4),
                placed=(Size(20, 4), Size(40, 8)),
                seed=seed,
                split="validation",
                measurements=20,
                num_tasks=3,
            )
            for seed in (0, 1)
        ]
    return [
        Cell(dims=dims, trained=size, placed=(size, LARGE) if size == PAPER_SIZE else (size,), seed=seed)
        for size, dims, seed in product(sorted(SIZES, reverse=True), ALL_DIMS, (0, 1, 2))
    ]


def _measured(left: Sequence[Cell]) -> Iterator[list[Result]]:
    """The results of cells as they end, as many at once as there are cores."""
    if not left:
        return
    spawned = multiprocessing.get_context("spawn")  # one thread each
    workers = min(len(left), len(os.sched_getaffinity(0)))
    with ProcessPoolExecutor(workers, mp_context=spawned, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for ended in as_completed([pool.submit(run, cell) for cell in left]):
            yield ended.result()


def run(cell: Cell) -> list[Result]:
    """Train every placer of a cell, and place all of its tasks."""
    bench, found = Bench(cell), list[Result]()
    exact = bench.testbed_with(noise=0.0)
    systems = bench.systems()
    for size, (name, system) in product(cell.placed, systems.items()):
        if size != cell.trained and name in AS_TRAINED:
            continue
        costs, times = zip(*(_placed(system, task, exact) for task in cell.tasks(size)), strict=True)
        found.append(
            Result(
                dims=cell.dims,
                trained=str(cell.trained),
                placed=str(size),
                seed=cell.seed,
                placer=name,
                measurements=system.measurements,
                learning_s=round(system.learning_s, 3),
                place_ms=round(float(np.median(times)), 4),
                costs_ms=" ".join(f"{cost:.7g}" for cost in costs),
                commit=source_revision(),
            )
        )
    return found


def _placed(system: System, task: PlacementTask, exact: SimulatedTestbed) -> tuple[float, float]:
    """Exact cost, infinite without a legal placement, and milliseconds of CPU to place."""
    if system.placer is None:
        return np.inf, 0.0
    began = time.process_time()
    try:
        placement = system.placer.place(task)
    except NoPlacementError:
        placement = None
    place_ms = 1e3 * (time.process_time() - began)
    legal = placement is not None and not violation(task, placement)
    return (exact.measure(task, placement).overall_ms if placement is not None and legal else np.inf), place_ms


class Bench:
    """Trains the placers of a cell."""

    def __init__(self, cell: Cell) -> None:
        self.cell, self.pool = cell, pool_of(cell.dims, "train")
        self.testbed = self.testbed_with(noise=0.01)
        self.tasks = draw_tasks(self.pool, f"{cell.dims}-train", cell.trained, _TRAINING_TASKS, _TRAINING_SEED)

    def testbed_with(self, noise: float) -> SimulatedTestbed:
        """The simulated testbed, which needs no lookups."""
        setup = TestbedSetup(
            num_devices=self.cell.trained.devices, batch_size=BATCH, lookups=_no_lookups, seed=self.cell.seed
        )
        return SimulatedTestbed(setup, RTX2080TI, noise)

    def systems(self) -> dict[str, System]:
        """Every placer by name."""
        seed, ours = self.cell.seed, self._trained("dreamshard")
        network = ours.placer.cost_network, ours.placer.normaliser
        found = {name: System(placer=rule) for name, rule in baselines(seed).items()}
        found["cost_greedy"] = replace(ours, placer=GreedyCostPlacer(*network))
        found["dreamshard"] = replace(ours, placer=replace(ours.placer, columns=False))
        found["dreamshard_columns"] = ours
        found |= {name: self._trained(name) for name in ("paper", "autoshard")}
        found["rnn"] = self._rnn(ours)
        found |= {name: replace(ours, placer=rival(name, ours.placer)) for name in ON_NETWORK}
        planners = [name for name in OF_TORCHREC if name in installed_rivals()]
        return found | {name: System(placer=rival(name, None, spec=RTX2080TI)) for name in planners}

    def _trained(self, algorithm: Algorithm) -> Any:
        """By as many rounds as in the paper, with all-to-alls of the devices to place on measured by themselves."""
        rounds = min(_ROUNDS, self.cell.measurements)
        numbers = TrainingConfig(iterations=rounds, placements_per_iteration=self.cell.measurements // rounds)
        config = with_algorithm(numbers, algorithm)
        designed = exchanges_for(self.tasks, BATCH, [size.devices for size in self.cell.placed])
        measured = [self.testbed.measure_exchange(exchange) for exchange in designed]
        began, samples = time.process_time(), list[CostSample]()
        state = start_training(self.pool, config, self.cell.seed, measured)
        for _ in range(config.iterations):
            samples += [self.testbed.measure(task, placement) for task, placement in propose(state, self.tasks)]
            fit_costs(state, samples)
            improve_policy(state, self.tasks)
        learning_s = time.process_time() - began
        return System(placer=make_placer(state), learning_s=learning_s, measurements=len(samples))

    def _rnn(self, ours: Any) -> System:
        began, count = time.process_time(), self.cell.measurements
        try:
            placer = train_rnn(ours.placer.normaliser, self.tasks, self.testbed.measure, self.cell.seed, count)
        except NoPlacementError:
            return System(placer=None, measurements=count)
        return System(placer=placer, learning_s=time.process_time() - began, measurements=count)


def _no_lookups(name: str) -> Any:
    raise AssertionError(f"the simulated testbed asked for the lookups of {name}, which it does not need")


def pool_of(dims: Dims, split: Split) -> Tables:
    """The tables of one part; no two parts share any."""
    train, rest = split_tables(meta_tables("meta-dlrm-2021", dims), torch.Generator().manual_seed(0))
    if split == "train":
        return train
    validation, test = split_tables(rest, torch.Generator().manual_seed(1))
    return validation if split == "validation" else concatenate([test, meta_tables("meta-dlrm-2022", dims)])


def draw_tasks(pool: Tables, name: str, size: Size, count: int, seed: int) -> list[PlacementTask]:
    """Seeded tasks of distinct tables; if the pool has too few, it is repeated under other names.

    Devices have the paper's 5 GiB, or more if a legal placement would otherwise hardly exist.
    """
    pool, generator, tasks = repeated(pool, size.tables), torch.Generator().manual_seed(seed), []
    for number in range(count):
        tables = pool.select(torch.randperm(len(pool), generator=generator)[: size.tables])
        table_bytes = tables.memory_bytes("fp16", "sgd").double()
        needed = max(_EVEN_SHARE * float(table_bytes.sum()) / size.devices, _LARGEST * float(table_bytes.max()))
        memory_bytes = max(_PAPER_BYTES, int(needed))
        tasks.append(PlacementTask(tables, size.devices, memory_bytes, "fp16", "sgd", f"{name}-{size}-{number:03}"))
    return tasks


def read(file: Path) -> list[Result]:
    """The results so far; none if there is no file."""
    return [Result(**each) for each in pd.read_csv(file).to_dict("records")] if file.exists() else []


def write(file: Path, results: Sequence[Result]) -> None:
    """Write all results, in the order of settings; the file appears completely or not at all."""
    with replacing(file) as temporary:
        pd.DataFrame(sorted(results, key=_order)).to_csv(temporary, index=False)


def summarised(results: Sequence[Result]) -> list[Figure]:
    """One figure for each setting and placer, by dims and size."""
    by_setting: dict[tuple[str, str, str], dict[str, list[Result]]] = {}
    for each in sorted(results, key=_order):
        by_setting.setdefault(each.setting, {}).setdefault(each.placer, []).append(each)
    return [figure for placers in by_setting.values() for figure in _of_setting(placers)]


def _order(result: Result) -> tuple[str, int, int, int]:
    tables, devices = map(int, result.placed.split("x"))
    return result.dims, tables, devices, result.seed


def _of_setting(placers: Mapping[str, Sequence[Result]]) -> Iterator[Figure]:
    costs = {name: _costs(own) for name, own in placers.items()}
    best = min(RULES_OF_THUMB, key=lambda rule: float(costs[rule].mean()))
    for name, own in placers.items():
        yield Figure(
            dims=own[0].dims,
            placed=own[0].placed,
            trained=own[0].trained,
            placer=name,
            gain=gain_over(costs[name], costs[best]),
            place_ms=float(np.median([each.place_ms for each in own])),
            learning_s=float(np.mean([each.learning_s for each in own])),
        )


def _costs(results: Sequence[Result]) -> Costs:
    return np.array([[float(cost) for cost in each.costs_ms.split()] for each in results])  # [S, T]


def _tables(figures: Sequence[Figure]) -> str:
    """Savings and times of each placer by size, a table for each kind of dims."""
    texts = []
    for dims in dict.fromkeys(figure.dims for figure in figures):
        own = [figure for figure in figures if figure.dims == dims]
        sizes, lines = dict.fromkeys((figure.size for figure in own), "-"), dict[str, dict[str, str]]()
        for figure in own:
            line = lines.setdefault(figure.placer, {"placer": figure.placer, **sizes})
            line[figure.size] = f"{figure.saved}, {figure.place_ms:.3g} ms"
        texts.append(f"## {dims}\n\n{markdown_table(list(lines.values()))}\n")
    return "\n".join(texts)
