"""Placers by a cost model: the search by a trained network or by a preset's roofline, and the parts of a trained placer.

A preset's costs are those of the simulated testbed on the same hardware: public figures, not measurements of the user's
devices.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from time import monotonic
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dreamshard.constraints import UNCONSTRAINED
from dreamshard.cost_model.cost_network import COMPUTE, CostNetwork, Normaliser
from dreamshard.cost_model.structured import StructuredCostNetwork
from dreamshard.costs import DeviceCosts, Difference, MeasuredOn
from dreamshard.hardware.accelerator import AcceleratorSpec
from dreamshard.policy.mdp import Episode, PolicyNetwork, rollout
from dreamshard.search.costs import CostModel, NetworkCosts, RooflineCosts
from dreamshard.search.options import ShardingOptions
from dreamshard.search.packing import packed
from dreamshard.search.search import default_moves, search
from dreamshard.search.starting import greedy
from dreamshard.tables import DEFAULT_BATCH, ON_ONE_HOST, Placement, Tables
from dreamshard.tasks import NoPlacementError, OrderedPlacer, PlacementTask, Placer, violation

MOVES_PER_MS = 1_000
"""Changes that an idle core tries in a millisecond; a budget of time stands for as many, whatever the machine."""

Inference = Literal["search", "policy"]
"""How a placement is found: by the search, or as in the paper (section 3.3) by the greedy policy alone."""

POLICY = "dreamshard_policy"
PARTS = ("cost_greedy", POLICY)
"""Parts of a trained placer that place alone: greedy on its cost network, and its policy without search."""


@dataclass(frozen=True, kw_only=True)
class SearchingPlacer(OrderedPlacer):
    """A placer that searches by a cost model.

    Attributes:
        budget_ms: work of the search: as much as an idle core does in this time; None for the task's own.
        columns: whether tables may be split by columns if memory does not require it.
        timeout_s: after which a search ends, with the best placement so far. Until then it has no effect, so any machine
            that is fast enough finds the same placement.
        more_moves: of a search without a budget, see `default_moves`.
    """

    more_moves = 100_000  # plans of 20 to 200 tables cost 0.07 % less on average, for some 45 ms
    budget_ms: float | None = None
    columns: bool = True
    timeout_s: float = math.inf

    @abstractmethod
    def costs(self, task: PlacementTask) -> CostModel:
        """The costs of a task's shards."""

    def costs_on(self, task: PlacementTask, placement: Placement) -> CostModel:
        """`costs`, on the hosts of a placement if that has tables on one host."""
        if placement.sharding_types & set(ON_ONE_HOST):
            task = replace(task, devices_per_host=placement.devices_per_host)
        return self.costs(task)

    def predict(self, task: PlacementTask, placement: Placement) -> DeviceCosts:
        """`[D]` predicted milliseconds per phase of any placement of `task`; see `costs.py`.

        Raises:
            ValueError: the cost model has no costs of such shards.
        """
        return self.costs_on(task, placement).predict(placement)

    @abstractmethod
    def measured_on(self, task: PlacementTask) -> MeasuredOn | None:
        """The measurements behind the costs of a task; None if they are unknown."""

    def knows_topology(self, task: PlacementTask) -> bool:
        """Whether all-to-alls of the task's devices and hosts were measured, if no placements."""
        return False

    def differences(
        self, task: PlacementTask, hardware: str | None, called: str | None = None
    ) -> tuple[list[Difference], str]:
        """Respects in which a task differs from the measurements behind its costs, and a sentence on that, with advice.

        `hardware` and `called` are as for `make_plan`; without any difference the sentence is empty.
        """
        measured, training = self.measured_on(task), "train a version for it (`dreamshard run`)"
        if measured is None:
            doubt = (
                f"it is unknown what this placer's costs were measured on: they may not hold for {called or hardware}"
            )
            return (["hardware"], f"{doubt}; {training}") if hardware else ([], "")
        differs = measured.differences(task, hardware, knows_topology=self.knows_topology(task))
        if "hardware" in differs:
            return differs, (
                f"the costs are of {measured}, not of {called or hardware}, so others may be slow there; leave --placer out, "
                f"which picks costs of {called or hardware}, or {training}"
            )
        names = ", ".join(name.replace("num_", "number of ").replace("_", " ") for name in differs)
        sentence = f"the costs are of {measured}, so the plan balances estimates for another {names}; {training}"
        return differs, sentence if differs else ""

    def moves(self, task: PlacementTask, budget_ms: float | None = None) -> int:
        """Changes that a search tries for each combination of sharding types; `budget_ms` overrides the placer's own."""
        budget_ms = self.budget_ms if budget_ms is None else budget_ms
        return default_moves(task, self.more_moves) if budget_ms is None else round(MOVES_PER_MS * budget_ms)

    def place_ordered(self, task: PlacementTask, budget_ms: float | None) -> Placement:
        """Search by all sharding types that the task allows; errors as for `Placer.place`.

        Raises:
            ValueError: tables must be in host memory, or the cost model predicts whole tables and columns only.
        """
        end = monotonic() + self.timeout_s
        return search(
            task, self.costs(task), self.moves(task, budget_ms), columns=self.columns, is_late=lambda: monotonic() > end
        )


@dataclass(frozen=True)
class DreamShardPlacer(SearchingPlacer):
    """A trained policy and cost network.

    Attributes:
        inference: `policy` places whole tables without search or budget.
    """

    cost_network: CostNetwork
    policy: PolicyNetwork
    normaliser: Normaliser
    inference: Inference = "search"

    @property
    def name(self) -> str:
        """`paper` for the paper's networks."""
        if not isinstance(self.cost_network, StructuredCostNetwork):
            return "paper"
        return POLICY if self.inference == "policy" else "dreamshard"

    def costs(self, task: PlacementTask) -> CostModel:
        """See `SearchingPlacer`."""
        return NetworkCosts.of(task, self.cost_network, self.normaliser)

    def measured_on(self, task: PlacementTask) -> MeasuredOn | None:
        """See `SearchingPlacer`."""
        return self.cost_network.measured_on

    def knows_topology(self, task: PlacementTask) -> bool:
        """See `SearchingPlacer`."""
        return self.cost_network.knows_topology(task)

    def place_ordered(self, task: PlacementTask, budget_ms: float | None) -> Placement:
        """See `SearchingPlacer`; or the policy's own placement."""
        if self.inference == "search":
            return super().place_ordered(task, budget_ms)
        taken = rollout(self.policy, Episode.of(task, self.cost_network, self.normaliser))
        placement = Placement.whole(taken.device[0], task.num_devices)
        if task.constraints is UNCONSTRAINED and bool(taken.feasible):
            return placement  # memory is all that it must respect
        if broken := violation(task, placement):
            raise NoPlacementError(
                f"the policy alone found no legal placement of {task.name or 'the tables'}: {broken}; the published method "
                "knows only memory, pins and exclusions, and does not go back, so give the devices more memory, or use a "
                "placer that searches"
            )
        return placement

    @torch.no_grad()
    def alone_ms(self, tables: Tables) -> Float[Tensor, "T 2"]:
        """Predicted forward and backward compute of each table alone on a device, in the setting that was measured."""
        latents = self.cost_network.encode(self.normaliser(tables))
        return self.cost_network.phases_ms(latents[:, None, :])[:, 0, COMPUTE].clamp(min=0)


@dataclass(frozen=True)
class RooflinePlacer(SearchingPlacer):
    """Places by the roofline of `spec`.

    Attributes:
        spec: a preset, or the user's own figures.
    """

    spec: AcceleratorSpec
    name: str = "prior"
    more_moves = 2_300_000  # a kernel's steps make many local optima

    def costs(self, task: PlacementTask) -> CostModel:
        """See `SearchingPlacer`."""
        return RooflineCosts.of(task, self.spec)

    def measured_on(self, task: PlacementTask) -> MeasuredOn:
        """See `SearchingPlacer`."""
        return MeasuredOn(
            testbed="preset",
            hardware=f"simulated {self.spec.name}",
            num_devices=task.num_devices,
            devices_per_host=task.devices_per_host,
            precision=task.precision,
            optimizer=task.optimizer,
            batch_size=task.batch_size or DEFAULT_BATCH,
        )


@dataclass(frozen=True)
class GreedyCostPlacer(OrderedPlacer):
    """Places whole tables, in descending predicted cost, each where it costs least."""

    cost_network: CostNetwork
    normaliser: Normaliser
    name: str = "cost_greedy"

    def place_ordered(self, task: PlacementTask, budget_ms: float | None) -> Placement:
        """Packs tables if greedy fails; raises NoPlacementError if packing fails, too."""
        costs = NetworkCosts.of(task, self.cost_network, self.normaliser)
        options = ShardingOptions.of(task, costs, columns=False)
        start = greedy(options.menu, np.argsort(-options.menu.alone_ms, kind="stable"))
        if start is None:
            return Placement.whole(packed(task), task.num_devices)
        return options.placement(start, joined=True)


def part_of(name: str, placer: DreamShardPlacer) -> Placer:
    """The part of `placer` that is called `name`, one of `PARTS`."""
    if name == POLICY:
        return replace(placer, inference="policy")
    return GreedyCostPlacer(placer.cost_network, placer.normaliser)
