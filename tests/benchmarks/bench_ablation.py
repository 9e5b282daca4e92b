"""What each part of the method is worth: true cost without the part over the true cost with it, by four laws.

Trained at 50x4 from 100 placements, measured with 1 % noise and, by one law, with 10 % as on CPU ranks; tasks of validation
tables, whole, dim 16 and mixed dims. A row is one part under one law: the mean over the sets of 50x4 and 200x8, or those of
800x128, which count alike, with its 95 % interval over tasks and seeds, and each set by itself. Above 1, the part pays. Left
out are, one at a time:

- search: the policy alone places, or greedy on the same cost network, or NeuroShard's search of whole tables.
- structured network: the paper's network, trained on the same kinds of placements. The search knows no such network, so
  NeuroShard's search places by it.
- policy: placements are measured that an untrained policy samples (random ones), or lopsided ones only.
- exploration: all measured placements are sampled from the policy, none are lopsided.
- exchanges: no all-to-alls are measured alone.

`--quick` has one seed, two tasks of each set, and one law.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from dreamshard.search import DreamShardPlacer, GreedyCostPlacer
from dreamshard.training import TRAINING_ALGORITHMS, TrainingAlgorithm, TrainingConfig, with_algorithm
from tests.benchmarks.measuring import ALL_DIMS, TRAINED, Costs, Place, Row, Size, law_state, relative, tasks, true_ms
from tests.benchmarks.neuroshard import NeuroShardPlacer
from tests.helpers.laws import LAWS, NOISE, UNSEEN

COUNTS = {TRAINED: 10, Size(200, 8): 5, Size(800, 128): 2}
JUDGED = ((TRAINED, Size(200, 8)), (Size(800, 128),))
NOISY = 0.1


class NoPolicy(TrainingAlgorithm):
    """The policy stays untrained."""

    def improve(self, state: Any, tasks: Sequence[Any]) -> Any:
        state.iteration += 1


ALL = "all parts"
DEFAULT, PAPER = TrainingConfig(), replace(with_algorithm(TrainingConfig(), "paper"), exploration=0.5)


class Part(NamedTuple):
    """The method without a part: how it is trained, and which of its placers are judged, by name."""

    placers: dict[str, str]
    method: TrainingAlgorithm
    config: TrainingConfig = DEFAULT
    exchanges: bool = True


PARTS = (
    Part({ALL: "searching"} | {f"search: {k}": k for k in ("policy", "greedy", "neuroshard")}, TrainingAlgorithm()),
    Part({"structured network: neuroshard": "neuroshard"}, TRAINING_ALGORITHMS["paper"], PAPER),
    Part({"policy: random placements": "searching"}, NoPolicy()),
    Part({"policy: lopsided placements": "searching"}, NoPolicy(), TrainingConfig(exploration=1.0)),
    Part({"exploration": "searching"}, TrainingAlgorithm(), TrainingConfig(exploration=0.0)),
    Part({"exchanges": "searching"}, TrainingAlgorithm(), exchanges=False),
)


def rows(quick: bool = False) -> Iterator[Row]:
    """Law by law, part by part."""
    seeds = (0,) if quick else (0, 1, 2)
    for law, noise in ((UNSEEN, NOISY),) if quick else (*((law, NOISE) for law in LAWS), (UNSEEN, NOISY)):
        costs_of: dict[str, dict[str, Costs]] = {}  # by part and set
        for part, dims in product(PARTS if noise == NOISE else PARTS[2:] + PARTS[:1], ALL_DIMS):
            method = {"method": part.method, "exchanges": part.exchanges, "noise": noise}
            states = [law_state(dims, seed, law, part.config, **method) for seed in seeds]
            for size, count in COUNTS.items():
                drawn = tasks(dims, "validation", size, 2 if quick else count, seed=300)
                for name, kind in part.placers.items():
                    placers = [_place(kind, part.method.placer(state)) for state in states]
                    costs = np.array([true_ms(law, drawn, placer) for placer in placers])
                    costs_of.setdefault(name, {})[f"{dims} {size}"] = costs
        with_all = costs_of.pop(ALL)
        for (name, without), sizes in product(costs_of.items(), JUDGED):
            sets = [f"{dims} {size}" for dims in ALL_DIMS for size in sizes]
            yield _judge(f"{law.name}, noise {noise:.0%}, without {name}", sets, without, with_all)


def _judge(name: str, sets: Sequence[str], without: dict[str, Costs], with_all: dict[str, Costs]) -> Row:
    """Each set's costs count relative to its mean with all parts."""
    ratios = (np.concatenate([costs[of] / with_all[of].mean() for of in sets], axis=1) for costs in (without, with_all))
    shown = ", ".join(f"{of} {float(without[of].mean() / with_all[of].mean()):.3f}" for of in sets)
    return relative(f"{name}; {shown}", *ratios)


def _place(kind: str, placer: DreamShardPlacer) -> Place:
    network, normaliser = placer.cost_network, placer.normaliser
    placers = {
        "searching": replace(placer, columns=False),
        "policy": replace(placer, inference="policy"),
        "greedy": GreedyCostPlacer(network, normaliser),
        "neuroshard": NeuroShardPlacer(network, normaliser, columns=False),
    }
    return placers[kind].place
