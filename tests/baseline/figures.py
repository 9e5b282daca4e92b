"""Place, predict and train as the baseline does; compute its figures, and compare them with the frozen ones.

Tasks are of Meta's 2021 and 2022 tables with dim 16 or mixed dims, and of MLPerf's DLRM-DCNv2.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from pydantic import TypeAdapter

from dreamshard.constraints import Constraints
from dreamshard.cost_model.exchanges import designed_exchanges
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.hardware.roofline import sharding_costs
from dreamshard.moving import Current, MovePrice, weigh
from dreamshard.planning import make_plan
from dreamshard.policy.mdp import Episode, rollout
from dreamshard.search import DreamShardPlacer, GreedyCostPlacer, RooflinePlacer
from dreamshard.search.packing import HEURISTICS, baselines
from dreamshard.tables import ON_ONE_DEVICE, SHARDING_TYPES, Placement, Tables
from dreamshard.tasks import PlacementTask, Shards
from dreamshard.training import TrainingConfig, load_placer
from tests.helpers.testbeds import simulated
from tests.helpers.trained import learn, make_placer

HERE = Path(__file__).parent
COST_RISE = 0.005
"""The most by which a cost may rise, relative to the frozen one."""
ERROR_RISE = 0.002
"""The most by which the mean held-out error may rise: about two and a half of its standard errors over seeds."""
SEEDS = range(6)


@dataclass(frozen=True)
class Case:
    """A task and what is asked of it.

    Attributes:
        dims: of the pool that its tables come from; names the network that places them.
        hardware: of the preset that places them too; empty for none.
        current: device of each table in the current plan; empty for none.
    """

    task: PlacementTask
    dims: str
    hardware: str
    current: list[int]


@cache
def pool(name: str) -> Tables:
    """The tables of one pool: `dim16-train`, `dim16-test`, `mixed-train`, `mixed-test` or `mlperf`."""
    columns = pq.read_table(HERE / "tables.parquet", filters=[("pool", "=", name)]).to_pydict()
    sizes = [torch.tensor(columns[column]) for column in ("rows", "dim", "pooling_factor")]
    counts = [torch.tensor(columns[column]) for column in ("lookups", "unique_rows")]
    return Tables(tuple(columns["name"]), *sizes, torch.from_numpy(np.asarray(columns["bins"], np.float64)), *counts)


def cases() -> list[Case]:
    """All tasks whose plans are judged."""
    return [_case(**spec) for spec in json.loads((HERE / "tasks.json").read_text())]


def training_tasks(dims: str) -> list[PlacementTask]:
    """50 tasks of 50 training tables on 4 devices."""
    generator = np.random.default_rng(5)
    tables = pool(f"{dims}-train")
    drawn = [generator.permutation(len(tables))[:50].tolist() for _ in range(50)]
    return [
        PlacementTask(tables.select(index), 4, 16 * 2**30, "fp16", "sgd", f"{dims}-{i}")
        for i, index in enumerate(drawn)
    ]


def unseen_tasks(dims: str) -> list[PlacementTask]:
    """Tasks of 50 test tables on 4 devices, placed by networks only."""
    return [case.task for case in cases() if case.task.name.startswith(f"50x4 {dims}") and not case.hardware]


def _case(name, precision, tables, num_devices, memory_bytes, devices_per_host=None, constraints=(), **spec) -> Case:
    given = TypeAdapter(Constraints).validate_python(dict(constraints))
    how = precision, "sgd", name, devices_per_host
    task = PlacementTask(pool(spec["pool"]).select(tables), num_devices, memory_bytes, *how, constraints=given)
    return Case(task, spec["pool"].removesuffix("-test"), spec.get("hardware", ""), spec.get("current", []))


def compute(names: str = "") -> dict[str, Any]:
    """All figures; of the tasks with `names` in their names only, without training, if it is given."""
    figures: dict[str, Any] = {"costs": {}}
    for case in cases():
        if names in case.task.name:
            figures["costs"] |= {f"{case.task.name} {name}": round(cost, 6) for name, cost in _costs(case)}
    if not names:
        figures |= {"training": training()}
    return figures


def _costs(case: Case) -> Iterator[tuple[str, float]]:
    task = case.task
    if case.dims in DIMS:
        yield from plan_costs(task, case.dims).items()
    if case.hardware and not case.current:
        yield f"{case.hardware}", preset_cost(task, case.hardware, columns=True)
        if set(task.constraints.usual_types) < set(SHARDING_TYPES):
            yield f"{case.hardware} whole", preset_cost(task, case.hardware, columns=False)
    if case.current:
        yield f"{case.hardware} current", cost_after_moving(task, case.current, case.hardware)


def training() -> dict[str, float]:
    """Held-out error, and true cost of plans on unseen tasks, of placers trained now: means over the seeds."""
    figures = {}
    for dims in DIMS:
        unseen = unseen_tasks(dims)
        placers = [trained(pool(f"{dims}-train"), training_tasks(dims), seed) for seed in SEEDS]
        figures[f"{dims} error"] = round(float(np.mean([heldout_error(placer, unseen) for placer in placers])), 5)
        plans = [true_ms(task, placer.place(task)) for placer in placers for task in unseen]
        figures[f"{dims} cost"] = round(float(np.mean(plans)), 5)
    return figures


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


DIMS = ("dim16", "mixed")
EXACT = simulated(noise=0.0)
STEPS, BYTES_PER_S = 10_000, 10e9
"""The price of moving: a gain is had in so many steps, and tables move at this rate."""


@cache
def network_placer(dims: str) -> DreamShardPlacer:
    """The frozen placer, trained at 50x4 on the simulated testbed."""
    return load_placer(HERE / "placers" / dims)


def plan_costs(task: PlacementTask, dims: str) -> dict[str, float]:
    """Milliseconds that the frozen network predicts of each placer's plan, by placer."""
    ours = network_placer(dims)
    if set(task.constraints.usual_types) - set(ON_ONE_DEVICE):
        return {"dreamshard": float(ours.predict(task, ours.place(task)).overall_ms())}
    placers: dict[str, Any] = {
        "dreamshard": ours,
        "whole": replace(ours, columns=False),
        "cost_greedy": GreedyCostPlacer(ours.cost_network, ours.normaliser),
    }
    costs = {name: float(ours.predict(task, placer.place(task)).overall_ms()) for name, placer in placers.items()}
    if task.constraints.places_freely and "tight" not in task.name:
        finished = rollout(ours.policy, Episode.of(task, ours.cost_network, ours.normaliser))
        costs["policy"] = float(ours.predict(task, Placement.whole(finished.device[0], task.num_devices)).overall_ms())
        for heuristic in HEURISTICS:
            costs[heuristic] = float(ours.predict(task, baselines()[heuristic].place(task)).overall_ms())
    return costs


def preset_cost(task: PlacementTask, hardware: str, *, columns: bool) -> float:
    """Milliseconds of the plan that the search by a preset finds, by every sharding type that the task allows."""
    placer = RooflinePlacer(PRESETS[hardware], columns=columns)
    return float(placer.predict(task, placer.place(task)).overall_ms())


def cost_after_moving(task: PlacementTask, device: list[int], hardware: str) -> float:
    """Milliseconds of a step of the plan chosen with `device` as the current one, with its share of the price of moving."""
    placer = RooflinePlacer(PRESETS[hardware])
    held = Current.of(make_plan(task, Placement.whole(torch.tensor(device), task.num_devices), "in use"), task)
    price = MovePrice(steps_until_next=STEPS, bytes_per_s=BYTES_PER_S)
    chosen = weigh(task, held, placer.place(task), placer, price).chosen
    return price.total_ms(chosen) / STEPS


def true_ms(task: PlacementTask, placement: Placement) -> float:
    """The simulated testbed's cost without noise."""
    return float(sharding_costs(Shards.of(task, placement), EXACT.setup.batch_size, EXACT.spec).overall_ms())


def trained(pool: Tables, tasks: list[PlacementTask], seed: int) -> DreamShardPlacer:
    """A placer from ten rounds of ten placements measured on the simulated testbed, and exchanges measured alone."""
    exchanges = [simulated().measure_exchange(exchange) for exchange in designed_exchanges((4, 8, 128), None, 2**27)]
    return make_placer(learn(pool, tasks, TrainingConfig(), seed, simulated(), exchanges=exchanges).state)


def heldout_error(placer: DreamShardPlacer, tasks: list[PlacementTask]) -> float:
    """Mean relative error of the predicted overall cost, on placements of the heuristics and drawn ones."""
    errors = []
    for number, task in enumerate(tasks):
        drawn = np.random.default_rng(number).integers(task.num_devices, size=(8, len(task.tables)))
        placements = [Placement.whole(torch.from_numpy(device), task.num_devices) for device in drawn]
        placements += [baselines()[heuristic].place(task) for heuristic in HEURISTICS]
        for placement in placements:
            exact = true_ms(task, placement)
            errors.append(abs(float(placer.predict(task, placement).overall_ms()) - exact) / exact)
    return float(np.mean(errors))
