"""The package's interfaces as the baseline uses them: placing, predicting, training."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dreamshard.cost_model.exchanges import designed_exchanges
from dreamshard.hardware.accelerator import PRESETS
from dreamshard.hardware.roofline import sharding_costs
from dreamshard.moving import InUse, MovePrice, weigh
from dreamshard.placement import ON_ONE_DEVICE, Placement
from dreamshard.plan import make_plan
from dreamshard.policy.mdp import Episode, rollout
from dreamshard.search import DreamShardPlacer, GreedyCostPlacer, RooflinePlacer
from dreamshard.search.baselines import RULES_OF_THUMB, baselines
from dreamshard.shards import Shards
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask
from dreamshard.training import TrainingConfig, load_placer
from tests.helpers.testbeds import simulated
from tests.helpers.trained import learn, make_placer

HERE = Path(__file__).parent
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
        for rule in RULES_OF_THUMB:
            if rule != "random":
                costs[rule] = float(ours.predict(task, baselines()[rule].place(task)).overall_ms())
    return costs


def preset_cost(task: PlacementTask, hardware: str, *, columns: bool) -> float:
    """Milliseconds of the plan that the search by a preset finds, by every way to shard that the task allows."""
    placer = RooflinePlacer(PRESETS[hardware], columns=columns)
    return float(placer.predict(task, placer.place(task)).overall_ms())


def cost_after_moving(task: PlacementTask, device: list[int], hardware: str) -> float:
    """Milliseconds of a step of the plan chosen with `device` in use, with its share of the price of moving."""
    placer = RooflinePlacer(PRESETS[hardware])
    held = InUse.of(make_plan(task, Placement.whole(torch.tensor(device), task.num_devices), "in use"), task)
    price = MovePrice(steps_until_next=STEPS, bytes_per_s=BYTES_PER_S)
    chosen = weigh(task, held, placer.place(task), placer, price).chosen
    return price.total_ms(chosen.overall_ms, chosen.moved_bytes) / STEPS


def true_ms(task: PlacementTask, placement: Placement) -> float:
    """The simulated testbed's cost without noise."""
    return float(sharding_costs(Shards.of(task, placement), EXACT.setup.batch_size, EXACT.spec).overall_ms())


def trained(pool: Tables, tasks: list[PlacementTask], seed: int) -> DreamShardPlacer:
    """A placer from ten rounds of ten placements measured on the simulated testbed, and exchanges measured alone."""
    exchanges = [simulated().measure_exchange(each) for each in designed_exchanges((4, 8, 128), None, 2**27)]
    return make_placer(learn(pool, tasks, TrainingConfig(), seed, simulated(), exchanges=exchanges).state)


def heldout_error(placer: DreamShardPlacer, tasks: list[PlacementTask]) -> float:
    """Mean relative error of the predicted overall cost, on placements of the rules of thumb and drawn ones."""
    errors = []
    for number, task in enumerate(tasks):
        drawn = np.random.default_rng(number).integers(task.num_devices, size=(8, len(task.tables)))
        placements = [Placement.whole(torch.from_numpy(device), task.num_devices) for device in drawn]
        placements += [baselines()[rule].place(task) for rule in RULES_OF_THUMB if rule != "random"]
        for placement in placements:
            exact = true_ms(task, placement)
            errors.append(abs(float(placer.predict(task, placement).overall_ms()) - exact) / exact)
    return float(np.mean(errors))
