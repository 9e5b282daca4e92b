"""A contest of placers: all trained on equal budgets, all placing the same tasks; rows that are known are not measured again.

A cell is one training of all placers with one seed. Its rows are in a CSV as soon as it ends. If a placer changes, remove its
rows: only these are then measured.
"""

import multiprocessing
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from dreamshard.costs import ExchangeSample
from dreamshard.rivals import installed_rivals, rival
from dreamshard.search import GreedyCostPlacer
from dreamshard.search.packing import HEURISTICS, baselines, packed
from dreamshard.tables import Placement, Tables
from dreamshard.tasks import NoPlacementError, PlacementTask, Placer, violation
from dreamshard.testbeds.base import Testbed
from dreamshard.training import TrainingConfig, with_algorithm
from dreamshard.training.config import Algorithm
from flows.reports.pages import markdown_table
from flows.runtime.environment import source_revision
from tests.benchmarks.measuring import gain_over
from tests.benchmarks.neuroshard import NeuroShardPlacer
from tests.helpers.testbeds import RTX2080TI
from tests.helpers.trained import learn, make_placer

DATA, QUICK = Path(__file__).parent / "data", Path(__file__).parents[2] / ".benchmarks"
ROUNDS = 10  # as in the paper


class System(NamedTuple):
    """A placer, CPU seconds of its learning without measuring, and the placements and all-to-alls measured for it."""

    placer: Placer
    learning_s: float = 0.0
    measurements: int = 0
    exchanges: int = 0


class Contest(NamedTuple):
    """One training of every placer on tasks of a pool."""

    pool: Tables
    tasks: Sequence[PlacementTask]
    testbed: Testbed
    exchanges: Sequence[ExchangeSample]
    seed: int
    measurements: int = 100

    def trained(self, algorithm: Algorithm, times: int = 1) -> System:
        """A placer after `times` as many measurements as all others have."""
        per_round = times * self.measurements // ROUNDS
        config = with_algorithm(TrainingConfig(iterations=ROUNDS, placements_per_iteration=per_round), algorithm)
        learned = learn(self.pool, self.tasks, config, self.seed, self.testbed, exchanges=self.exchanges)
        alone = len(self.exchanges) * (algorithm == "dreamshard")
        return System(make_placer(learned.state), learned.cpu_s, len(learned.samples), alone)

    def makers(self) -> dict[str, Callable[[], System]]:
        """Every placer by name, trained when it is first called."""
        ours = cache(lambda: self.trained("dreamshard"))

        def on_ours(place: Callable[[Any], Placer]) -> Callable[[], System]:
            return lambda: ours()._replace(placer=place(ours().placer))

        placers = {name: partial(System, heuristic) for name, heuristic in baselines(self.seed).items()}
        placers["cost_greedy"] = on_ours(lambda placer: GreedyCostPlacer(placer.cost_network, placer.normaliser))
        placers["dreamshard"] = on_ours(lambda placer: replace(placer, columns=False))
        placers["dreamshard_columns"] = ours
        placers |= {name: partial(self.trained, name) for name in ("paper", "autoshard")}
        for name, columns in (("neuroshard", False), ("neuroshard_columns", True)):
            placers[name] = on_ours(lambda p, c=columns, n=name: NeuroShardPlacer(p.cost_network, p.normaliser, c, n))
        placers |= {name: partial(System, rival(name, spec=RTX2080TI)) for name in installed_rivals()}
        return {name: cache(make) for name, make in placers.items()}


def results(
    makers: Mapping[str, Callable[[], System]],
    placed: Mapping[str, Sequence[PlacementTask]],
    known: Collection[tuple[str, str]],
    true_ms: Callable[[PlacementTask, Placement], float],
    outside: Callable[[PlacementTask, Placement], object] = lambda *_: False,
) -> Iterator[dict[str, Any]]:
    """True costs and times of every placer at each size, without `known` sizes and names.

    Tables are packed by size if a placement is not legal. `outside` tells whether it is beyond what the law was measured on.
    """
    for name, make in makers.items():
        left = [size for size in placed if (size, name) not in known]
        system = make() if left else None
        for size in left:
            costs, times, num_packed, num_outside = [], [], 0, 0
            for task in placed[size]:
                began, placement = time.process_time(), None
                with suppress(NoPlacementError):
                    placement = system.placer.place(task)
                times.append(1e3 * (time.process_time() - began))
                if placement is None or violation(task, placement):
                    placement, num_packed = Placement.whole(packed(task), task.num_devices), num_packed + 1
                costs.append(true_ms(task, placement))
                num_outside += bool(outside(task, placement))
            row = {"size": size, "placer": name, "measurements": system.measurements, "exchanges": system.exchanges}
            row |= {"learning_s": round(system.learning_s, 3), "place_ms": round(float(np.median(times)), 4)}
            row |= {"packed": num_packed, "outside": num_outside, "commit": source_revision()}
            yield row | {"costs_ms": " ".join(f"{cost:.7g}" for cost in costs)}


def measured(file: Path, keys: Sequence[str], cells: Sequence[Any], run: Callable[..., Any]) -> pd.DataFrame:
    """All rows: those of the file, and those that `run` makes of each cell, given the `(size, placer)` that are known of it.

    A cell's rows have its attributes `keys`. As many cells run at once as there are cores.
    """
    figures = pd.read_csv(file) if file.exists() else pd.DataFrame(columns=[*keys, "size", "placer"])
    spawned, workers = multiprocessing.get_context("spawn"), len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(workers, mp_context=spawned, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        submitted = []
        for cell in cells:
            done = figures[(figures[list(keys)].astype(str) == [str(getattr(cell, key)) for key in keys]).all(axis=1)]
            submitted.append(pool.submit(run, cell, {*zip(done["size"], done.placer, strict=True)}))
        for ended in as_completed(submitted):
            rows = pd.DataFrame(ended.result())
            figures = pd.concat([figures, rows]) if len(figures) else rows
            figures.to_csv(file, index=False)
    return figures


def summarised(figures: pd.DataFrame, keys: Sequence[str], *, nested: bool = False) -> pd.DataFrame:
    """A line per setting and placer: its gain over the best heuristic there, and medians of its times.

    Args:
        figures: rows of a contest.
        keys: columns that tell settings apart; `size` is the last, such as `20x4`.
        nested: whether each seed has tasks of its own.
    """
    lines = []
    for setting, group in figures.fillna(0).groupby(list(keys), sort=False):
        costs = {
            name: np.array([list(map(float, text.split())) for text in rows.sort_values("seed").costs_ms])  # [S, T]
            for name, rows in group.groupby("placer", sort=False)
        }
        best = min(HEURISTICS, key=lambda heuristic: float(costs[heuristic].mean()))
        for name, rows in group.groupby("placer", sort=False):
            line = dict(zip(keys, setting, strict=True)) | rows.mean(numeric_only=True).to_dict()
            line |= {"placer": name, "best": best, "costs": costs[name], "place_ms": rows.place_ms.median()}
            lines.append(line | {"gain": gain_over(costs[name], costs[best], nested=nested)})
    return pd.DataFrame(sorted(lines, key=lambda line: int(line["size"].split("x")[0])))


def report(name: str, keys: Sequence[str], cells: Sequence[Any], run: Callable[..., Any], quick: bool, *, nested=False):
    """Measure the cells that `NAME.csv` lacks, write savings by placer and size to `NAME.md`; returns all lines."""
    folder, texts = QUICK if quick else DATA, []
    figures = summarised(measured(folder / f"{name}.csv", keys, cells, run), ("dims", "size"), nested=nested)
    for dims, group in figures.groupby("dims"):
        wide = group.assign(text=group.gain.map(str)).pivot(index="placer", columns="size", values="text").fillna("-")
        lines = wide.loc[group.placer.unique(), group["size"].unique()].reset_index()
        texts.append(f"## {dims}\n\n{markdown_table(lines.to_dict('records'))}\n")
    (folder / f"{name}.md").write_text("\n".join(texts), encoding="utf-8")
    return figures
