"""What the systems of a cell are built from: its testbed, training tasks and budget of measurements."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from dreamshard import autoshard, training
from dreamshard.algorithms import Algorithm, TrainingConfig, with_algorithm
from dreamshard.autoshard import AutoShardConfig
from dreamshard.costs import CostSample
from dreamshard.exchange_design import exchanges_for
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.cluster.testbed import ClusterTestbed
from dreamshard.testbeds.simulated import SimulatedTestbed

_ROUNDS = 10  # as in the paper


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
        builders: of all systems, by name.
        testbed: measures, with noise.
        pool: all tables that training may use.
        tasks: to train on.
        measurements: placements that each system measures.
        most_devices: of the tasks to place, whose all-to-alls are measured by themselves.
        batch_size: samples of a step.
    """

    builders: Mapping[str, "Build"]
    testbed: SimulatedTestbed | ClusterTestbed
    pool: Tables
    tasks: Sequence[PlacementTask]
    measurements: int
    most_devices: int
    batch_size: int
    seed: int
    _ready: dict[str, System] = field(default_factory=dict)

    def system(self, name: str) -> System:
        """The placer called `name`, one of `builders`."""
        if name not in self._ready:
            self._ready[name] = self.builders[name](self)
        return self._ready[name]

    def config(self, algorithm: Algorithm) -> TrainingConfig:
        """As many rounds as in the paper, or one per measurement where these are fewer."""
        rounds = min(_ROUNDS, self.measurements)
        numbers = TrainingConfig(iterations=rounds, placements_per_iteration=self.measurements // rounds)
        return with_algorithm(numbers, algorithm)

    def trained(
        self,
        algorithm: Algorithm,
        *,
        settings: Mapping[str, Any] = MappingProxyType({}),
        exchanges: bool = True,
        prepare: Callable[[Any], None] | None = None,
    ) -> System:
        """A placer that has measured and learnt.

        Args:
            algorithm: what to train.
            settings: of its `TrainingConfig`, in place of the algorithm's own.
            exchanges: whether all-to-alls are measured by themselves.
            prepare: changes the state before the first round.
        """
        config: Any = replace(self.config(algorithm), **settings)
        steps: Any = training
        if algorithm == "autoshard":
            steps, config = autoshard, AutoShardConfig.of(config)
        designed = exchanges_for(self.tasks, self.batch_size, (self.most_devices,))
        measured = [self.testbed.measure_exchange(exchange) for exchange in designed] if exchanges else []
        state = steps.start_training(self.pool, config, self.seed, measured)
        if prepare is not None:
            prepare(state)
        samples: list[CostSample] = []
        learning_s = 0.0
        for _ in range(config.iterations):
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


Build = Callable[[Bench], System]
"""Trains a system, or takes what another one has learnt."""
