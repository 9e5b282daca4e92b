"""DreamShard with one part left out, by name: features, costs that the policy sees, and what this project added.

The paper's ablations (section 4), for the published system `paper` and for `dreamshard`. The variants exist in sweeps only;
no model file holds one.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dreamshard.algorithms import Algorithm
from dreamshard.cost_model import FEATURES, Normaliser
from dreamshard.policy.policy_network import COST_COLUMNS
from dreamshard.sweep.bench import Bench, Build, System
from dreamshard.sweep.real_mdp import MeasuredCosts, MeasuringPlacer, train_on_measured_costs
from dreamshard.tables import Tables
from dreamshard.testbeds.simulated import SimulatedTestbed
from dreamshard.training import TrainingState, start_training

FEATURE_GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "dim": ("dim", "size", "log_dim"),
        "rows": ("rows", "size", "log_rows"),
        "pooling_factor": ("pooling_factor", "log_pooling", "log_unique"),
        "size": ("size",),
        "distribution": (
            *(name for name in FEATURES if name.startswith("bin_")),
            *("log_reuse", "log_unique", "hot_share"),
        ),
    }
)
"""The paper's groups of features, each with all that is computed from it."""


@dataclass(frozen=True)
class WithoutFeatures(Normaliser):
    """A normaliser whose removed features are 0 for every table: the mean of the pool, or of the task.

    Cost network and policy see tables through their normaliser only, so such a feature has no influence on either.

    Attributes:
        removed: names among `FEATURES`.
    """

    removed: tuple[str, ...] = ()

    def of_task(self, tables: Tables) -> Normaliser:
        """See `Normaliser`."""
        own = super().of_task(tables)
        return self if own is self else WithoutFeatures(own.mean, own.std, own.scope, self.removed)

    def __call__(self, tables: Tables) -> Float[Tensor, "T F"]:
        """See `Normaliser`."""
        normalised = super().__call__(tables)
        normalised[:, [FEATURES.index(name) for name in self.removed]] = 0.0
        return normalised


def without_features(state: TrainingState, group: str) -> None:
    """Remove a group of `FEATURE_GROUPS` from a state before its first round."""
    given = state.normaliser
    state.normaliser = WithoutFeatures(given.mean, given.std, given.scope, FEATURE_GROUPS[group])


def without_costs(state: TrainingState) -> None:
    """Hide predicted costs from a policy before its first round; tables still come in descending predicted cost."""
    policy = state.policy
    if policy.kind == "paper":
        _ignore(policy.cost[0], slice(0, COST_COLUMNS))
        return
    _ignore(policy.device[0], slice(-1 - COST_COLUMNS, -1))  # the last column is memory
    with torch.no_grad():
        policy.greed.fill_(-torch.inf)  # its exponential is the weight of the cost of placing a table
    policy.greed.requires_grad_(False)


def _ignore(layer: nn.Module, columns: slice) -> None:
    """Let inputs of a linear layer have no effect, now and after any optimizer step."""
    assert isinstance(layer, nn.Linear)
    kept = torch.ones_like(layer.weight)
    kept[:, columns] = 0.0
    with torch.no_grad():
        layer.weight *= kept
    layer.weight.register_hook(lambda gradient: gradient * kept)


def _whole_tables(system: System, **changes: Any) -> System:
    return replace(system, placer=replace(system.placer, columns=False, **changes))


def _on_dreamshard(**changes: Any) -> Build:
    """The networks of `dreamshard`, placing in another way."""
    return lambda bench: _whole_tables(bench.system("dreamshard_columns"), **changes)


def _without_features(algorithm: Algorithm, group: str) -> Build:
    """Rules of thumb know all features, so a search does not start from them."""

    def build(bench: Bench) -> System:
        knows_dims = group != "dim"  # without which all-to-alls by themselves have no meaning
        system = bench.trained(algorithm, exchanges=knows_dims, prepare=lambda state: without_features(state, group))
        return _whole_tables(system, starts=("policy", "cost_greedy"))

    return build


def _real_mdp(algorithm: Algorithm) -> Build:
    def build(bench: Bench) -> System:
        if not isinstance(bench.testbed, SimulatedTestbed):
            raise ValueError(
                f"a policy's training on measured costs takes tens of thousands of measurements, which would take days on "
                f"{bench.testbed.name!r}; leave it out, or use `simulated`"
            )
        began = time.process_time()
        state = start_training(bench.pool, bench.config(algorithm), bench.seed)
        costs = MeasuredCosts(bench.testbed, torch.Generator().manual_seed(bench.seed))
        train_on_measured_costs(state, bench.tasks, costs)
        learning_s = time.process_time() - began - costs.seconds
        placer = MeasuringPlacer(state.policy, state.normaliser, costs)
        return System(placer=placer, learning_s=learning_s, measurements=costs.measurements)

    return build


def _trained(**arguments: Any) -> Build:
    return lambda bench: _whole_tables(bench.trained("dreamshard", **arguments))


_PAPER_RATE = 5e-4  # of both networks as published

ABLATIONS: Mapping[str, Build] = MappingProxyType(
    {
        **{f"paper_without_{group}": _without_features("paper", group) for group in FEATURE_GROUPS},
        "paper_without_costs": lambda bench: bench.trained("paper", prepare=without_costs),
        "paper_real_mdp": _real_mdp("paper"),
        **{f"dreamshard_without_{group}": _without_features("dreamshard", group) for group in FEATURE_GROUPS},
        "dreamshard_without_costs": _trained(prepare=without_costs),
        "dreamshard_policy_without_costs": lambda bench: _whole_tables(
            bench.system("dreamshard_without_costs"), inference="policy"
        ),
        "dreamshard_policy_real_mdp": _real_mdp("dreamshard"),
        "dreamshard_without_exploration": _trained(settings={"exploration": 0.0}),
        "dreamshard_without_exchanges": _trained(exchanges=False),
        "dreamshard_without_policy": _on_dreamshard(starts=("cost_greedy", "rules")),
        "dreamshard_without_rules": _on_dreamshard(starts=("policy", "cost_greedy")),
        "dreamshard_from_rules": _on_dreamshard(starts=("rules",)),
        "dreamshard_with_paper_costs": _trained(settings={"cost_network": "paper", "cost_learning_rate": _PAPER_RATE}),
        "dreamshard_with_paper_policy": _trained(settings={"policy": "paper", "policy_learning_rate": _PAPER_RATE}),
    }
)
"""Builds a variant by name."""


def reference_of(name: str) -> str:
    """The system that has the part which the variant `name` leaves out."""
    if name.startswith("paper_"):
        return "paper"
    if name.startswith("dreamshard_policy_"):
        return "dreamshard_policy"
    features = {f"dreamshard_without_{group}" for group in FEATURE_GROUPS}
    return "dreamshard_without_rules" if name in features else "dreamshard"
