"""What the published rivals of an evaluation learn from, so that they are compared with a version at equal expense.

`rnn` measures as many placements as the version that it is compared with had learnt from, and `neuroshard` and
`neuroshard_columns` are fitted to those very placements. The rivals on predicted costs, `cost_greedy` and
`dreamshard_policy` use a network that predicts what steps cost, so they take part only beside a version that has one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dreamshard.cost_model import Normaliser
from dreamshard.costs import CostSample, feasible
from dreamshard.peers import (
    FITTED,
    LEARNED,
    MEASURING,
    PREDICTING,
    Measure,
    RnnTraining,
    peer,
    trained_on_measurements,
    trained_peer,
)
from dreamshard.placer import Placer
from dreamshard.search import PARTS, DreamShardPlacer
from dreamshard.tasks import PlacementTask
from storage.mlflow_store import registry
from storage.run_records import lineage, training_effort
from storage.store import Store

_BY_COSTS = (*PARTS, *PREDICTING)


@dataclass(frozen=True, kw_only=True)
class RivalInputs:
    """What rivals may learn from.

    Attributes:
        train_tasks: tasks to learn from; empty where no rival learns before it places.
        samples: measured placements that the version in question was fitted to; empty where the lake has none.
        measure: measures placements for `rnn`; None where there is nothing to measure on.
        may_leave_out: whether a rival that cannot learn is left out, because all were asked for and none by name.
    """

    train_tasks: Sequence[PlacementTask] = ()
    samples: Sequence[CostSample] = ()
    measure: Measure | None = None
    may_leave_out: bool = False

    @property
    def measurements(self) -> int:
        """Placements that `rnn` measures: as many as the version has learnt from, or the default where that is not known."""
        return len(self.samples) or RnnTraining().measurements

    def taking_part(self, names: Sequence[str], *, predicts: bool) -> tuple[list[str], tuple[str, ...]]:
        """Those of `names` that take part, and sentences about rivals that were left out.

        Args:
            predicts: whether a version among them predicts what steps cost.

        Raises:
            ValueError: a placer was named that uses predicted costs of steps, and no version predicts them.
        """
        by_costs = [] if predicts else [name for name in names if name in _BY_COSTS]
        if by_costs and not (self.may_leave_out and set(by_costs) <= set(PREDICTING)):
            raise ValueError(
                f"{', '.join(by_costs)} would use a network that predicts what steps cost, but AutoShard predicts compute "
                "only, so they cannot take part; name a version of another algorithm as well, e.g. champion, or leave them "
                "out"
            )
        left_out, notes = by_costs, []
        if by_costs:
            notes.append(
                f"{_listed(by_costs)} were left out: they use a network that predicts what steps cost, but AutoShard "
                "predicts compute only"
            )
        fitted = [name for name in names if name in FITTED]
        if fitted and self.may_leave_out and (reason := self._why_not_fitted()):
            left_out = [*left_out, *fitted]
            notes.append(f"{_listed(fitted)} {'were' if len(fitted) > 1 else 'was'} left out: {reason}")
        return [name for name in names if name not in left_out], tuple(notes)

    def rival(self, name: str, base: DreamShardPlacer | None, normaliser: Normaliser, seed: int) -> Placer:
        """The rival `name`, after learning from these inputs.

        Args:
            base: predicts costs for those that use predicted ones; None where nothing does.
            normaliser: of the features that `rnn` sees.
            seed: of its training.

        Raises:
            ValueError: it lacks what it learns from; see `dreamshard.peers.peer`.
        """
        if name == MEASURING and self.train_tasks and self.measure is not None:
            budget = RnnTraining(measurements=self.measurements)
            return trained_on_measurements(normaliser, self.train_tasks, self.measure, seed, budget)
        if name in LEARNED and base is not None and self.train_tasks:
            return trained_peer(name, base, self.train_tasks, seed)
        return peer(name, base, seed, samples=self.samples)

    def _why_not_fitted(self) -> str:
        """The reason why NeuroShard's models cannot be fitted for the devices of the training tasks; empty where they can."""
        if not self.train_tasks:
            return ""
        num_devices = self.train_tasks[0].num_devices
        measured_on = {sample.task.num_devices for sample in feasible(self.samples)}
        if not measured_on:
            return "the lake has no measured placements that the version was trained on"
        if measured_on != {num_devices}:
            return (
                f"the placements that the version was trained on are of {sorted(measured_on)} "
                f"devices, not of {num_devices}, and NeuroShard's models take the devices that they were fitted to"
            )
        return ""


def _listed(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def samples_of_training(store: Store, training: str) -> list[CostSample]:
    """The placements that a training was fitted to: those of the trainings that it continued, then its own."""
    earlier, _ = lineage.earlier_samples(store, training_effort.read_origin(store, training).warm)
    return [*earlier, *store.lake.read_cost_samples(run_key=training)]


def samples_of_version(store: Store, version: str) -> list[CostSample]:
    """The same of a registered version; none where it does not say how it was trained, or another lake has them."""
    origin = lineage.origin_of(store, version)
    if origin is None:
        return []
    earlier, _ = lineage.earlier_samples(store, origin.warm)
    return [*earlier, *store.lake.read_cost_samples(run_key=registry.version_tags(store.settings, version)["training"])]
