"""What each part of the method is worth: true cost without the part over the true cost with it, by four laws.

Trained at 50x4 from 100 placements, measured with noise; tasks of validation tables, 50x4 and 200x8, whole tables, dim 16 and
mixed dims. A row is one part under one law: the mean over its four sets of tasks, which count alike, with its 95 % interval
over tasks and seeds, and each set by itself. Above 1, the part pays. Left out are, one at a time:

- search: the policy alone places, or greedy on the same cost network, or NeuroShard's search of whole tables.
- structured network: the paper's network, trained on the same kinds of placements. The search knows no such network, so the
  policy alone places by it, or NeuroShard's search.
- policy: placements are measured that an untrained policy samples (random ones), or lopsided ones only.
- exploration: all measured placements are sampled from the policy, none are lopsided.
- saturating inputs: a table's work has logarithms and squares only.
- exchanges: no all-to-alls are measured alone.
- ensemble: all its members are one.

`--quick` has one seed, two tasks of each set, and one law.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from dreamshard.cost_model import StructuredCostNetwork
from dreamshard.placement import Placement
from dreamshard.rivals.neuroshard import NeuroShardPlacer
from dreamshard.search import DreamShardPlacer, GreedyCostPlacer
from dreamshard.shards import violation
from dreamshard.tasks import PlacementTask
from dreamshard.training import DreamShard, TrainingConfig, with_algorithm
from dreamshard.training.algorithms import Paper
from tests.benchmarks.bench_paper_table import pool_of
from tests.benchmarks.gains import Costs, gain_over
from tests.benchmarks.measuring import Row, law_state, row
from tests.benchmarks.pools import ALL_DIMS, TRAINED, Dims, Size, tasks
from tests.helpers.laws import LAWS, Law

COUNTS = {TRAINED: 10, Size(200, 8): 5}
SATURATING = 17  # the last inputs of a table's work


class NoPolicy(DreamShard):
    """The policy stays untrained."""

    def improve(self, state: Any, tasks: Sequence[PlacementTask]) -> Any:
        state.iteration += 1


class Unsaturated(StructuredCostNetwork):
    """Inputs that saturate are 0, and so are the gradients of their weights."""

    def _work_inputs(self, normalised, ratios):
        logs, inputs, work = super()._work_inputs(normalised, ratios)
        inputs[..., -SATURATING:] = 0
        return logs, inputs, work


class NoSaturation(DreamShard):
    def networks(self, normaliser):
        return Unsaturated(normaliser), super().networks(normaliser)[1]


class OneMember(DreamShard):
    """Members that begin alike stay alike, since they are fitted to the same samples."""

    @torch.no_grad()
    def networks(self, normaliser):
        network, policy = super().networks(normaliser)
        for weights in network.parameters():
            weights[:] = weights[:1].clone()
        return network, policy


Place = Callable[[PlacementTask], Placement]
ALL = "all parts"
DEFAULT, PAPER = TrainingConfig(), replace(with_algorithm(TrainingConfig(), "paper"), exploration=0.5)


class Part(NamedTuple):
    """The method without a part: how it is trained, and which of its placers are judged, by name."""

    placers: dict[str, str]
    method: DreamShard
    config: TrainingConfig = DEFAULT
    exchanges: bool = True


PARTS = (
    Part(
        {
            ALL: "searching",
            "search: policy alone": "policy",
            "search: greedy": "greedy",
            "search: NeuroShard's": "neuroshard",
        },
        DreamShard(),
    ),
    Part(
        {"structured network: policy alone": "policy", "structured network: NeuroShard's search": "neuroshard"},
        Paper(),
        PAPER,
    ),
    Part({"policy: random placements": "searching"}, NoPolicy()),
    Part({"policy: lopsided placements": "searching"}, NoPolicy(), TrainingConfig(exploration=1.0)),
    Part({"exploration": "searching"}, DreamShard(), TrainingConfig(exploration=0.0)),
    Part({"saturating inputs": "searching"}, NoSaturation()),
    Part({"exchanges": "searching"}, DreamShard(), exchanges=False),
    Part({"ensemble": "searching"}, OneMember()),
)


def rows(quick: bool = False) -> Iterator[Row]:
    """Law by law, part by part."""
    for law in LAWS[1:2] if quick else LAWS:
        found: dict[str, list[Costs]] = {}  # by part, of each set in turn
        for dims in ALL_DIMS:
            by_part = _costs(law, dims, (0,) if quick else (0, 1, 2), quick)
            for name, costs in by_part.items():
                found.setdefault(name, []).extend(costs)
        with_all = found.pop(ALL)
        for name, without in found.items():
            yield _judged(f"{law.name}, without {name}", without, with_all)


def _judged(name: str, without: Sequence[Costs], with_all: Sequence[Costs]) -> Row:
    """Each set's costs count relative to its mean with all parts."""
    costs = np.concatenate([own / base.mean() for own, base in zip(without, with_all, strict=True)], axis=1)
    reference = np.concatenate([base / base.mean() for base in with_all], axis=1)
    gain, low, high = gain_over(costs, reference), np.nan, np.nan
    if gain.low is not None and gain.high is not None:
        low, high = 1 - gain.high, 1 - gain.low
    sets = [f"{dims} {size}" for dims in ALL_DIMS for size in COUNTS]
    each = [float(own.mean() / base.mean()) for own, base in zip(without, with_all, strict=True)]
    shown = ", ".join(f"{of} {ratio:.3f}" for of, ratio in zip(sets, each, strict=True))
    return row(f"{name} ({low:.3f} to {high:.3f}); {shown}", float(costs.mean() / reference.mean()), "")


def _costs(law: Law, dims: Dims, seeds: Sequence[int], quick: bool) -> dict[str, list[Costs]]:
    """`[S, T]` true costs of seeds and tasks of each size, by placer."""
    pool = pool_of(dims, "validation")
    sets = [tasks(pool, size, 2 if quick else count, seed=300) for size, count in COUNTS.items()]
    found: dict[str, list[Costs]] = {}
    for part in PARTS:
        states = [law_state(dims, seed, law, part.config, part.method, exchanges=part.exchanges) for seed in seeds]
        for name, kind in part.placers.items():
            placers = [_place(kind, part.method.placer(state)) for state in states]
            found[name] = [np.array([[_true_ms(law, task, each) for task in of] for each in placers]) for of in sets]
    return found


def _place(kind: str, placer: DreamShardPlacer) -> Place:
    network, normaliser = placer.cost_network, placer.normaliser
    placers = {
        "searching": replace(placer, columns=False),
        "policy": replace(placer, inference="policy"),
        "greedy": GreedyCostPlacer(network, normaliser),
        "neuroshard": NeuroShardPlacer(network, normaliser, columns=False),
    }
    return placers[kind].place


def _true_ms(law: Law, task: PlacementTask, place: Place) -> float:
    placement = place(task)
    assert not violation(task, placement), f"an illegal placement of {task.name}"
    return law.true_ms(task, placement)
