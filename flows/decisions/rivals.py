"""What the published rivals of an evaluation learn from, so that they are compared with a version at equal expense.

`rnn` measures as many placements as the version that it is compared with had learnt from, and `neuroshard` is fitted to those
very placements.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dreamshard.costs import CostSample, feasible
from dreamshard.peers import FITTED, Measure, RnnTraining
from dreamshard.tasks import PlacementTask
from storage.mlflow_store import registry
from storage.run_records import lineage, training_effort
from storage.store import Store


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

    def why_not(self, name: str, num_devices: int) -> str:
        """The reason why a rival cannot take part on so many devices; empty where it can."""
        if name != FITTED:
            return ""
        measured_on = {sample.task.num_devices for sample in feasible(self.samples)}
        if not measured_on:
            return "neuroshard was left out: the lake has no measured placements that the version was trained on"
        if measured_on != {num_devices}:
            return (
                f"neuroshard was left out: the placements that the version was trained on are of {sorted(measured_on)} "
                f"devices, not of {num_devices}, and its models take the devices that they were fitted to"
            )
        return ""


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
