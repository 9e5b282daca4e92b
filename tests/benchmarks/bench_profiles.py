"""Placers learned from one to five profiles of the running plan, on laws that no preset knows.

A job runs TorchRec's plan; a profile is what its step costs on every rank, with 3 % noise of each device and phase. After
each one the placer is learned again, and its plan runs next. `rtx2080ti`, `v100`: the preset that is the prior; `none`: no
prior.

- four GPUs of NeuroShard's law (`bench_real_gpu`; validation tasks with `--quick`, otherwise test tasks): true cost over
  long annealing on the law, means over tasks; and the share of 90 % intervals that hold the true saving over the last plan.
- 500 tables on 64 devices of three laws of this project: true cost.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dreamshard.hardware.accelerator import PRESETS
from dreamshard.rivals import RIVALS, rival
from dreamshard.search.packing import HEURISTICS, baselines
from dreamshard.tasks import PlacementTask
from dreamshard.traces import PRIOR_DEVICES, learn
from tests.benchmarks.annealing import annealed_ms
from tests.benchmarks.bench_real_gpu import Cell as Split, draw_tasks
from tests.benchmarks.contest import DATA, QUICK, measured
from tests.benchmarks.measuring import Row, Size, meta_tables, repeated, task_of
from tests.helpers.laws import BATCH, PAGES, SIMULATED, UNSEEN, Law, LawTestbed
from tests.helpers.neuroshard_law import DEVICES, neuroshard_folder, neuroshard_law

PRIORS, NOISE, PROFILES = ("rtx2080ti", "v100", "none"), 0.03, (1, 2, 3, 5)
_TASKS, _SEEDS, _MOVES = 2, 5, 30_000
_LAWS = {"simulated": SIMULATED, "unseen": UNSEEN, "pages": PAGES}


@dataclass(frozen=True)
class Cell:
    """A prior on one law with one seed."""

    law: str
    prior: str
    seed: int
    quick: bool

    def tasks(self) -> list[PlacementTask]:
        """Of NeuroShard's sizes, or one large one."""
        if self.law in _LAWS:
            return [task_of(repeated(meta_tables("meta-dlrm-2021", "mixed"), 500).select(range(500)), 64, self.law)]
        pool = Split(self.seed, self.quick).pools()[1]
        return [task for count in (20, 40) for task in draw_tasks(pool, Size(count, DEVICES), _TASKS, 100 + self.seed)]


def rows(quick: bool = False) -> Iterator[Row]:
    """Measure the cells that the CSV lacks; then a row for each law, prior and number of profiles."""
    folder, seeds = (QUICK, 1) if quick else (DATA, _SEEDS)
    cells = [Cell("neuroshard", prior, seed, quick) for seed in range(seeds) for prior in PRIORS]
    cells += [] if quick else [Cell(law, prior, 0, quick) for law in _LAWS for prior in ("v100", "none")]
    figures = measured(folder / "profiles.csv", ("law", "prior", "seed"), cells, run)
    for (law, size, prior, profiles), group in figures.groupby(["law", "size", "prior", "profiles"], sort=False):
        ratios, held = group["ratio"].mean(), group["is_held"].mean()
        text = f"{law} {size}: {profiles} profiles, prior {prior}; {held:.0%} of {len(group)} intervals hold"
        yield {"name": text, "value": ratios, "unit": "x annealing" if law == "neuroshard" else "ms"}


def run(cell: Cell, known: set[tuple[str, str]]) -> list[dict[str, Any]]:
    """All numbers of profiles of each task, unless the cell is known; with 0 the running plan, and the best heuristic."""
    law = _LAWS.get(cell.law) or neuroshard_law(neuroshard_folder(), wider=True)
    return [] if known else [row for k, task in enumerate(cell.tasks()) for row in _of_task(cell, law, task, k)]


def _of_task(cell: Cell, law: Law, task: PlacementTask, number: int) -> Iterator[dict[str, Any]]:
    testbed = LawTestbed(law, 100 * cell.seed + number, NOISE)
    size = f"{len(task.tables)}x{task.num_devices}"
    best_ms = 1.0 if cell.law in _LAWS else annealed_ms(law, task, _MOVES)
    current = rival(RIVALS[0], spec=PRESETS["v100"]).place(task)
    facts = {"law": cell.law, "prior": cell.prior, "seed": cell.seed, "size": size, "placer": f"{size}-{number}"}
    least_ms = min(law.true_ms(task, baselines()[name].place(task)) for name in HEURISTICS)
    for what, cost_ms in ((0, law.true_ms(task, current)), ("heuristic", least_ms)):
        yield facts | {"profiles": what, "ratio": cost_ms / best_ms, "is_held": np.nan}
    samples, is_large = [], cell.law in _LAWS
    for count in range(1, max(PROFILES) + 1):
        samples.append(testbed.measure(replace(task, batch_size=BATCH), current))
        if count > PROFILES[2] and (count not in PROFILES or is_large):
            continue
        has_prior = cell.prior != "none"
        spec, refits = PRESETS[cell.prior if has_prior else "v100"], 8 if has_prior and not is_large else 0
        learned = learn(samples, spec, prior_devices=PRIOR_DEVICES * has_prior, refits=refits)
        planned = replace(learned.placer, columns=False).place(task)
        held = np.nan
        if refits:
            saving = learned.saving(task, current, planned)
            after_ms, before_ms = (law.phases_ms(task, placement).sum(dim=1).max() for placement in (planned, current))
            held = float(saving.low <= 1 - after_ms / before_ms <= saving.high)  # as a profile shows it: without waits
        yield facts | {"profiles": count, "ratio": law.true_ms(task, planned) / best_ms, "is_held": held}
        current = planned
