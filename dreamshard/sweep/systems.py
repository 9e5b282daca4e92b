"""Every placer by name, trained within a cell. All that learn from measurements learn from equally many.

A name that ends in `_columns` may split tables by columns; all others place whole tables.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dreamshard import autoshard, training
from dreamshard.algorithms import Algorithm, TrainingConfig, with_algorithm
from dreamshard.autoshard import AutoShardConfig
from dreamshard.baselines import baselines
from dreamshard.costs import CostSample
from dreamshard.exchange_design import exchanges_for
from dreamshard.peers import trained_peer
from dreamshard.peers.neuroshard import NeuroShardPlacer, PredictedCosts
from dreamshard.peers.neuroshard_fitting import fitted_models
from dreamshard.peers.torchrec_planner import TorchRecPlanner
from dreamshard.placer import Placer
from dreamshard.search import GreedyCostPlacer
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.simulated import SimulatedTestbed

_ROUNDS = 10  # as in the paper
_RNN = {"rnn": True, "rnn_predicted": False}  # whether it measures by itself


@dataclass(frozen=True, kw_only=True)
class System:
    """A placer that is ready.

    Attributes:
        learning_s: CPU time of learning, without measuring.
        samples: measured placements that it learnt from.
        measurements: their number, also where they are not kept.
    """

    placer: Any
    learning_s: float = 0.0
    samples: Sequence[CostSample] = ()
    measurements: int = 0


@dataclass
class Bench:
    """What the systems of a cell train on; each is trained when it is first asked for.

    Attributes:
        testbed: measures, with noise.
        pool: all tables that training may use.
        tasks: to train on.
        measurements: placements that each system measures.
        most_devices: of the tasks to place, whose all-to-alls are measured by themselves.
        batch_size: samples of a step.
    """

    testbed: SimulatedTestbed
    pool: Tables
    tasks: Sequence[PlacementTask]
    measurements: int
    most_devices: int
    batch_size: int
    seed: int
    _ready: dict[str, System] = field(default_factory=dict)

    def system(self, name: str) -> System:
        """The placer called `name`, one of `SYSTEMS`."""
        if name not in self._ready:
            self._ready[name] = SYSTEMS[name](self)
        return self._ready[name]

    def trained(self, algorithm: Algorithm) -> System:
        """A placer after as many rounds as in the paper, or one per measurement where these are fewer."""
        rounds = min(_ROUNDS, self.measurements)
        config: Any = with_algorithm(
            TrainingConfig(iterations=rounds, placements_per_iteration=self.measurements // rounds), algorithm
        )
        steps: Any = training
        if algorithm == "autoshard":
            steps, config = autoshard, AutoShardConfig.of(config)
        designed = exchanges_for(self.tasks, self.batch_size, (self.most_devices,))
        exchanges = [self.testbed.measure_exchange(exchange) for exchange in designed]
        state = steps.start_training(self.pool, config, self.seed, exchanges)
        samples: list[CostSample] = []
        learning_s = 0.0
        for _ in range(rounds):
            began = time.process_time()
            proposals = steps.propose(state, self.tasks)
            learning_s += time.process_time() - began
            samples += [self.testbed.measure(task, placement) for task, placement in proposals]
            began = time.process_time()
            steps.fit_costs(state, samples)
            steps.improve_policy(state, self.tasks)
            learning_s += time.process_time() - began
        placer = steps.make_placer(state)
        return System(placer=placer, learning_s=learning_s, samples=samples, measurements=len(samples))


def _rule(name: str) -> Callable[[Bench], System]:
    return lambda bench: System(placer=baselines(bench.seed)[name])


def _rnn(name: str) -> Callable[[Bench], System]:
    def build(bench: Bench) -> System:
        base, began = bench.system("dreamshard"), time.process_time()
        measure = bench.testbed.measure if _RNN[name] else None
        placer = trained_peer(
            name, base.placer, bench.tasks, bench.seed, measure=measure, measurements=bench.measurements
        )
        learning_s = time.process_time() - began
        return System(
            placer=placer,
            learning_s=learning_s + (0.0 if _RNN[name] else base.learning_s),
            measurements=bench.measurements,
        )

    return build


def _neuroshard(*, columns: bool) -> Callable[[Bench], System]:
    def build(bench: Bench) -> System:
        base, began = bench.system("dreamshard"), time.process_time()
        models = fitted_models(base.samples, bench.seed)
        placer = NeuroShardPlacer(models, columns=columns and models.knows_dims)
        return System(placer=placer, learning_s=time.process_time() - began, measurements=base.measurements)

    return build


def _on_dreamshard(make: Callable[[Any], Placer]) -> Callable[[Bench], System]:
    """A placer on the networks of `dreamshard`."""
    return lambda bench: replace(base := bench.system("dreamshard_columns"), placer=make(base.placer))


SYSTEMS: dict[str, Callable[[Bench], System]] = {
    **{name: _rule(name) for name in baselines()},
    "dreamshard_columns": lambda bench: bench.trained("dreamshard"),
    "dreamshard": _on_dreamshard(lambda placer: replace(placer, columns=False)),
    "cost_greedy": _on_dreamshard(lambda placer: GreedyCostPlacer(placer.cost_network, placer.normaliser)),
    "paper": lambda bench: bench.trained("paper"),
    "autoshard": lambda bench: bench.trained("autoshard"),
    "rnn": _rnn("rnn"),
    "rnn_predicted": _rnn("rnn_predicted"),
    "neuroshard": _neuroshard(columns=False),
    "neuroshard_columns": _neuroshard(columns=True),
    "neuroshard_predicted": _on_dreamshard(
        lambda placer: NeuroShardPlacer(PredictedCosts(placer.cost_network, placer.normaliser), columns=False)
    ),
    "neuroshard_predicted_columns": _on_dreamshard(
        lambda placer: NeuroShardPlacer(PredictedCosts(placer.cost_network, placer.normaliser))
    ),
    "torchrec_planner": lambda bench: System(placer=TorchRecPlanner.on(bench.testbed.spec)),
    "torchrec_planner_columns": lambda bench: System(
        placer=TorchRecPlanner.on(bench.testbed.spec, "torchrec_planner_columns")
    ),
}
"""Builds a placer by name."""
