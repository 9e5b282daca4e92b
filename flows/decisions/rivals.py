"""What the published rivals of an evaluation learn from, so that they are compared with a version at equal expense.

`rnn` measures as many placements as the version that it is compared with learned from. `neuroshard`, `cost_greedy` and
`dreamshard_policy` use a network that predicts what steps cost, so they take part only beside a version that has one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dreamshard.cost_model import Normaliser
from dreamshard.placer import Placer
from dreamshard.rivals import MEASUREMENTS, MEASURING, ON_NETWORK, Measure, rival, train_rnn
from dreamshard.search import PARTS, DreamShardPlacer
from dreamshard.tasks import PlacementTask
from storage.mlflow_store import registry
from storage.run_records import lineage, training_effort
from storage.store import Store

_BY_COSTS = (*PARTS, *ON_NETWORK)


@dataclass(frozen=True, kw_only=True)
class RivalInputs:
    """What rivals may learn from.

    Attributes:
        train_tasks: tasks to learn from; empty if no rival learns before it places.
        measured: placements that the version in question learned from; 0 if that is not known.
        measure: measures placements for `rnn`; None if there is nothing to measure on.
        may_leave_out: whether a rival that cannot take part is left out, because all were requested and none by name.
    """

    train_tasks: Sequence[PlacementTask] = ()
    measured: int = 0
    measure: Measure | None = None
    may_leave_out: bool = False

    @property
    def measurements(self) -> int:
        """Placements that `rnn` measures."""
        return self.measured or MEASUREMENTS

    def taking_part(self, names: Sequence[str], *, predicts: bool) -> tuple[list[str], tuple[str, ...]]:
        """Those of `names` that take part, and sentences about rivals that were left out.

        Args:
            predicts: whether a version among them predicts what steps cost.

        Raises:
            ValueError: a placer was named that uses predicted costs of steps, and no version predicts them.
        """
        by_costs = [] if predicts else [name for name in names if name in _BY_COSTS]
        if not by_costs:
            return list(names), ()
        if not (self.may_leave_out and set(by_costs) <= set(ON_NETWORK)):
            raise ValueError(
                f"{', '.join(by_costs)} would use a network that predicts what steps cost, but AutoShard predicts compute "
                "only, so they cannot take part; name a version of another algorithm as well, e.g. champion, or leave them "
                "out"
            )
        note = (
            f"{' and '.join(by_costs)} were left out: they use a network that predicts what steps cost, but AutoShard "
            "predicts compute only"
        )
        return [name for name in names if name not in by_costs], (note,)

    def rival(self, name: str, base: DreamShardPlacer | None, normaliser: Normaliser, seed: int) -> Placer:
        """The rival `name`, after learning from these inputs.

        Args:
            base: predicts costs for those that use predicted ones; None if nothing does.
            normaliser: of the features that `rnn` sees.
            seed: of its training.

        Raises:
            ValueError: it lacks what it learns from; see `dreamshard.rivals.rival`.
        """
        if name == MEASURING and self.train_tasks and self.measure is not None:
            return train_rnn(normaliser, self.train_tasks, self.measure, seed, self.measurements)
        return rival(name, base)


def measured_for_training(store: Store, training: str) -> int:
    """The number of placements that a training was fitted to: of the trainings that it continued, and its own."""
    earlier, _ = lineage.earlier_samples(store, training_effort.read_origin(store, training).warm)
    return len(earlier) + len(store.lake.read_cost_samples(run_key=training))


def measured_for_version(store: Store, version: str) -> int:
    """The same of a registered version; 0 if it does not say how it was trained, or another lake has the samples."""
    origin = lineage.origin_of(store, version)
    if origin is None:
        return 0
    earlier, _ = lineage.earlier_samples(store, origin.warm)
    training = registry.version_tags(store.settings, version)["training"]
    return len(earlier) + len(store.lake.read_cost_samples(run_key=training))
