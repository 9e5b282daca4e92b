"""The paper's main table: every placer at many sizes, on unseen tables of the simulated testbed.

Every placer that learns has the same number of measurements, with 1 % noise, of tasks of its size; those trained at 50x4 are
placed at 800x128 too, except `rnn`, which places only on as many devices as it was trained on. Placements are judged by
exact costs. A row says how much a placer saves over the best rule of thumb, chosen on these very tasks, with its 95 %
interval over tasks and seeds. Names that end in `_columns` may split tables by columns; all others keep them whole.

Half of Meta's 2021 tables are for training. A quarter of them, and all 2022 tables, are the test, to be looked at once. The
last quarter is for choices; `--quick`, which takes about two minutes, places tasks of these.

The whole takes an hour or more on two cores. A cell is one training of all placers with one seed. Its rows are in
`paper_table.csv` as soon as it ends, and known cells are not measured again: the same command continues. `paper_table.md`
has the tables of RESULTS. Both are in `tests/benchmarks/data`, or in `.benchmarks` with `--quick`.
"""

import multiprocessing
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch

from dreamshard.cost_model.exchanges import exchanges_for
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.placer import NoPlacementError, Placer
from dreamshard.rivals import OF_TORCHREC, ON_NETWORK, installed_rivals, rival
from dreamshard.search import GreedyCostPlacer
from dreamshard.search.baselines import RULES_OF_THUMB, baselines
from dreamshard.shards import violation
from dreamshard.tables import Tables, concatenate
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.base import TestbedSetup
from dreamshard.testbeds.simulated import SimulatedTestbed
from dreamshard.training import TrainingConfig, with_algorithm
from dreamshard.training.config import Algorithm
from flows.reports.report_tables import markdown_table
from flows.runtime.identity import source_revision
from tests.benchmarks.gains import gain_over
from tests.benchmarks.measuring import Row
from tests.benchmarks.pools import ALL_DIMS, BATCH, Dims, Size, halves, meta_tables, repeated
from tests.benchmarks.rnn import train_rnn
from tests.helpers.trained import learn, make_placer

RTX2080TI = PRESETS["rtx2080ti"]
DATA, QUICK = Path(__file__).parent / "data", Path(__file__).parents[2] / ".benchmarks"
SIZES, PAPER_SIZE, LARGE = (Size(20, 4), Size(50, 4), Size(100, 8), Size(200, 8)), Size(50, 4), Size(800, 128)
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

    def tasks(self, size: Size) -> list[PlacementTask]:
        """The tasks to place."""
        count = self.num_tasks or (30 if size.tables <= 100 else 10)
        return draw_tasks(pool_of(self.dims, self.split), f"{self.dims}-{self.split}", size, count, _PLACED_SEED)


class System(NamedTuple):
    """A placer with CPU seconds of learning, without measuring, and placements measured; None if it learned nothing."""

    placer: Placer | None
    learning_s: float = 0.0
    measurements: int = 0


def rows(quick: bool = False) -> Iterator[Row]:
    """Measure the cells that the CSV lacks; then a row for each setting and placer."""
    folder = QUICK if quick else DATA
    file = folder / "paper_table.csv"
    found = pd.read_csv(file) if file.exists() else pd.DataFrame({"dims": [], "trained": [], "seed": []})
    known = set(found[["dims", "trained", "seed"]].itertuples(index=False, name=None))
    left = [cell for cell in cells(quick) if (cell.dims, str(cell.trained), cell.seed) not in known]
    for ended in _measured(left):
        found = pd.concat([found, pd.DataFrame(ended)]) if len(found) else pd.DataFrame(ended)
        found.to_csv(file, index=False)
    figures = summarised(found)
    (folder / "paper_table.md").write_text(_tables(figures), encoding="utf-8")
    for each in figures.itertuples():
        times = f"learns in {each.learning_s:.3g} s CPU, places in {each.place_ms:.3g} ms"
        name = f"{each.size}, {each.dims}: {each.placer} saves over the best rule of thumb {each.gain}; {times}"
        yield {"name": name, "value": None if each.gain.mean is None else 100 * each.gain.mean, "unit": "%"}


def cells(quick: bool) -> list[Cell]:
    """The cells, the longest first."""
    if quick:
        small = Cell(dims="mixed", trained=Size(20, 4), placed=(Size(20, 4), Size(40, 8)), seed=0, split="validation")
        return [replace(small, seed=seed, measurements=20, num_tasks=3) for seed in (0, 1)]
    return [
        Cell(dims=dims, trained=size, placed=(size, LARGE) if size == PAPER_SIZE else (size,), seed=seed)
        for size, dims, seed in product(sorted(SIZES, reverse=True), ALL_DIMS, (0, 1, 2))
    ]


def _measured(left: list[Cell]) -> Iterator[list[dict[str, Any]]]:
    """The rows of cells as they end, as many at once as there are cores."""
    spawned = multiprocessing.get_context("spawn")  # one thread each
    workers = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(workers, mp_context=spawned, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for ended in as_completed([pool.submit(run, cell) for cell in left]):
            yield ended.result()


def run(cell: Cell) -> list[dict[str, Any]]:
    """Train every placer of a cell, and place all of its tasks; `costs_ms` is infinite without a legal placement."""
    exact, found = _testbed(cell, noise=0.0), []
    for size, (name, system) in product(cell.placed, _systems(cell).items()):
        if size != cell.trained and name in AS_TRAINED:
            continue
        costs, times = zip(*(_placed(system, task, exact) for task in cell.tasks(size)), strict=True)
        about = {"dims": cell.dims, "trained": str(cell.trained), "placed": str(size), "seed": cell.seed}
        about |= {"placer": name, "measurements": system.measurements, "learning_s": round(system.learning_s, 3)}
        about |= {"place_ms": round(float(np.median(times)), 4), "costs_ms": " ".join(f"{cost:.7g}" for cost in costs)}
        found.append(about | {"commit": source_revision()})
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


def _testbed(cell: Cell, noise: float) -> SimulatedTestbed:
    def no_lookups(name: str) -> Any:
        raise AssertionError(f"the simulated testbed asked for the lookups of {name}")

    setup = TestbedSetup(num_devices=cell.trained.devices, batch_size=BATCH, lookups=no_lookups, seed=cell.seed)
    return SimulatedTestbed(setup, RTX2080TI, noise)


def _systems(cell: Cell) -> dict[str, System]:
    """Every placer by name, trained in as many rounds as in the paper."""
    pool, testbed = pool_of(cell.dims, "train"), _testbed(cell, noise=0.01)
    tasks = draw_tasks(pool, f"{cell.dims}-train", cell.trained, _TRAINING_TASKS, _TRAINING_SEED)
    exchanges = [
        testbed.measure_exchange(each) for each in exchanges_for(tasks, BATCH, [size.devices for size in cell.placed])
    ]
    rounds = min(_ROUNDS, cell.measurements)
    numbers = TrainingConfig(iterations=rounds, placements_per_iteration=cell.measurements // rounds)

    def trained(algorithm: Algorithm) -> System:
        config = with_algorithm(numbers, algorithm)
        learned = learn(pool, tasks, config, cell.seed, testbed, exchanges=exchanges)
        return System(make_placer(learned.state), learned.cpu_s, len(learned.samples))

    def rnn() -> System:
        began = time.process_time()
        try:
            placer = train_rnn(placer_of.normaliser, tasks, testbed.measure, cell.seed, cell.measurements)
        except NoPlacementError:
            return System(None, measurements=cell.measurements)
        return System(placer, time.process_time() - began, cell.measurements)

    found = {name: System(rule) for name, rule in baselines(cell.seed).items()}
    ours = trained("dreamshard")
    placer_of: Any = ours.placer
    found["cost_greedy"] = ours._replace(placer=GreedyCostPlacer(placer_of.cost_network, placer_of.normaliser))
    found["dreamshard"] = ours._replace(placer=replace(placer_of, columns=False))
    found["dreamshard_columns"] = ours
    found |= {"paper": trained("paper"), "autoshard": trained("autoshard"), "rnn": rnn()}
    found |= {name: ours._replace(placer=rival(name, placer_of)) for name in ON_NETWORK}
    planners = [name for name in OF_TORCHREC if name in installed_rivals()]
    return found | {name: System(rival(name, None, spec=RTX2080TI)) for name in planners}


def pool_of(dims: Dims, split: Split) -> Tables:
    """The tables of one part; no two parts share any."""
    train, rest = halves(meta_tables("meta-dlrm-2021", dims), seed=0)
    if split == "train":
        return train
    validation, test = halves(rest, seed=1)
    return validation if split == "validation" else concatenate([test, meta_tables("meta-dlrm-2022", dims)])


def draw_tasks(pool: Tables, name: str, size: Size, count: int, seed: int) -> list[PlacementTask]:
    """Seeded tasks of distinct tables; if the pool has too few, it is repeated under other names.

    Devices have the paper's 5 GiB, or more if a legal placement would otherwise hardly exist.
    """
    pool, generator, tasks = repeated(pool, size.tables), torch.Generator().manual_seed(seed), []
    for number in range(count):
        tables = pool.select(torch.randperm(len(pool), generator=generator)[: size.tables])
        table_bytes = PlacementTask(tables, 1, 0, "fp16").table_bytes.double()
        needed = max(_EVEN_SHARE * float(table_bytes.sum()) / size.devices, _LARGEST * float(table_bytes.max()))
        memory_bytes = max(_PAPER_BYTES, int(needed))
        tasks.append(PlacementTask(tables, size.devices, memory_bytes, "fp16", "sgd", f"{name}-{size}-{number:03}"))
    return tasks


def summarised(found: pd.DataFrame) -> pd.DataFrame:
    """A line per dims, size and placer: its gain over the best rule of thumb, and medians of its times."""
    lines = []
    for (dims, placed, trained), setting in found.groupby(["dims", "placed", "trained"]):
        costs = {
            name: np.array([list(map(float, text.split())) for text in own.sort_values("seed").costs_ms])  # [S, T]
            for name, own in setting.groupby("placer", sort=False)
        }
        best = costs[min(RULES_OF_THUMB, key=lambda rule: float(costs[rule].mean()))]
        size = placed if placed == trained else f"{placed}, trained at {trained}"
        for name, own in setting.groupby("placer", sort=False):
            about = {"dims": dims, "size": size, "placer": name, "gain": gain_over(costs[name], best)}
            lines.append(about | {"place_ms": own.place_ms.median(), "learning_s": own.learning_s.mean()})
    return pd.DataFrame(sorted(lines, key=lambda line: (line["dims"], int(line["size"].split("x")[0]))))


def _tables(figures: pd.DataFrame) -> str:
    """Savings and times of each placer by size, a table for each kind of dims."""
    texts = []
    for dims, own in figures.groupby("dims"):
        cell_of = own.gain.map(str) + own.place_ms.map(", {:.3g} ms".format)
        wide = own.assign(text=cell_of).pivot(index="placer", columns="size", values="text").fillna("-")
        lines = wide.loc[own.placer.unique(), own["size"].unique()].reset_index()
        texts.append(f"## {dims}\n\n{markdown_table(lines.to_dict('records'))}\n")
    return "\n".join(texts)
