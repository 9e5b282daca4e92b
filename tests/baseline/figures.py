"""Compute the baseline's figures, and compare them with the frozen ones."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dreamshard.placement import SHARDING_TYPES
from tests.baseline import adapter
from tests.baseline.inputs import Case, cases, pool, training_tasks

COST_RISE = 0.005
"""The most by which a cost may rise, relative to the frozen one."""
ERROR_RISE = 0.002
"""The most by which the mean held-out error may rise: about two and a half of its standard errors over seeds."""
SEEDS = range(6)


def compute(names: str = "") -> dict[str, Any]:
    """All figures; of the tasks with `names` in their names only, without training, if it is given."""
    found: dict[str, Any] = {"costs": {}}
    for case in cases():
        if names in case.task.name:
            found["costs"] |= {f"{case.task.name} {name}": round(cost, 6) for name, cost in _costs(case)}
    if not names:
        found |= {"training": training()}
    return found


def _costs(case: Case) -> Iterator[tuple[str, float]]:
    task = case.task
    if case.dims in adapter.DIMS:
        yield from adapter.plan_costs(task, case.dims).items()
    if case.hardware and not case.current:
        yield f"{case.hardware}", adapter.preset_cost(task, case.hardware, columns=True)
        if set(task.constraints.usual_types) < set(SHARDING_TYPES):
            yield f"{case.hardware} whole", adapter.preset_cost(task, case.hardware, columns=False)
    if case.current:
        yield f"{case.hardware} current", adapter.cost_after_moving(task, case.current, case.hardware)


def training() -> dict[str, float]:
    """Held-out error, and true cost of plans on unseen tasks, of placers trained now: means over the seeds."""
    found = {}
    for dims in adapter.DIMS:
        unseen = [case.task for case in cases() if case.task.name.startswith(f"50x4 {dims}") and not case.hardware]
        placers = [adapter.trained(pool(f"{dims}-train"), training_tasks(dims), seed) for seed in SEEDS]
        found[f"{dims} error"] = round(float(np.mean([adapter.heldout_error(each, unseen) for each in placers])), 5)
        plans = [adapter.true_ms(task, placer.place(task)) for placer in placers for task in unseen]
        found[f"{dims} cost"] = round(float(np.mean(plans)), 5)
    return found


def losses(frozen: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each figure that got worse than the frozen one allows."""
    for name, cost in now["costs"].items():
        before = frozen["costs"][name]
        if cost > before * (1 + COST_RISE):
            yield f"{name}: {cost:.4f} ms, frozen {before:.4f} ({cost / before - 1:+.2%})"
    for name, value in now.get("training", {}).items():
        before = frozen["training"][name]
        worst = before + ERROR_RISE if name.endswith("error") else before * (1 + COST_RISE)
        if value > worst:
            yield f"trained, {name}: {value}, frozen {before}"
    if "training" in now:
        for name in frozen["costs"].keys() - now["costs"].keys():
            yield f"{name}: not computed"
