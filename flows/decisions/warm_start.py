"""What the next training starts from.

In the same setting (testbed, hardware, shape of the tasks, batch) on other tables it goes on from the champion: from its
networks and from what was measured for it. On the same tables there is nothing to go on to, so it is the same training
again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dreamshard.recipes import Recipe
from dreamshard.tasks import split_tables
from dreamshard.training import TrainingConfig
from flows.runtime.retries import passing
from flows.runtime.testbed_pool import TestbedReference
from storage.lake import home_lake
from storage.lake.table_splits import has_table_split, read_table_split
from storage.mlflow_store import registry
from storage.run_records import lineage
from storage.run_records.lineage import Origin, Setting, Version, Warm
from storage.settings import Settings
from storage.store import open_store


@dataclass(frozen=True, kw_only=True)
class Start:
    """How a training begins.

    Attributes:
        recipe: by name.
        source: of the tables.
        setting: see `Setting`.
        memory_bytes: of each device.
        config: of the rounds that are to be made.
        split_of: key of the task sets in whose halves tables stay; None where they are drawn.
        warm: what to go on from; None for nothing.
        why: in words, for people.
    """

    recipe: str
    source: str
    setting: Setting
    memory_bytes: int
    config: TrainingConfig
    split_of: str | None
    warm: Warm | None
    why: str

    def origin(self, dataset: str, tasks: str) -> Origin:
        """The origin of the training that begins like this."""
        return Origin(
            recipe=self.recipe,
            source=self.source,
            dataset=dataset,
            tasks=tasks,
            setting=self.setting,
            networks=(self.config.cost_network, self.config.policy),
            warm=self.warm,
            memory_bytes=self.memory_bytes,
        )


def start_from(config: Recipe, dataset: str, bench: TestbedReference, *, full: bool) -> Start:
    """From the champion if it was trained in the same setting, else from the newest version that was, else from nothing.

    Args:
        config: the recipe.
        dataset: version of the tables to train on.
        bench: where costs come from.
        full: begin with nothing all the same; tables stay in their halves nevertheless, so that the champion is judged by
            tables that it has not seen either.

    Raises:
        ValueError: what there is to go on from cannot be read at present.
    """
    setting = setting_of(config, bench)
    base = _base(setting)
    warm, why = _warm(base, config, dataset, full)
    split_of = _halves(base, config, dataset, bench.seed)
    if base is not None and split_of is None:
        warm, why = (
            None,
            f"with nothing and new halves: those of version {base.version} are gone or too small for a task",
        )
    training = config.training if warm is None else config.training.warm()
    return Start(
        recipe=config.name,
        source=config.workload.source,
        setting=setting,
        memory_bytes=config.tasks.memory_bytes,
        config=training,
        split_of=split_of,
        warm=warm,
        why=why,
    )


def setting_of(config: Recipe, bench: TestbedReference) -> Setting:
    """What a placer learns besides its tables."""
    tasks, measure = config.tasks, bench.measure
    return {
        "testbed": bench.kind,
        "hardware": bench.identity,
        "devices": tasks.num_devices,
        "tables per task": tasks.tables_per_task,
        "precision": tasks.precision,
        "optimizer": tasks.optimizer,
        "batch": bench.batch_size,
        "warm-ups": measure.warmups,
        "repeats": measure.repeats,
    }


def _base(setting: Setting) -> Version | None:
    found = [version for version in lineage.versions(open_store()) if version.origin.setting == setting]
    champion = registry.champion(Settings.load())
    return next((version for version in found if version.version == champion), found[0] if found else None)


def _warm(base: Version | None, config: Recipe, dataset: str, full: bool) -> tuple[Warm | None, str]:
    """What to go on from, and why."""
    if base is None:
        return None, "with nothing: no version was trained on this testbed, hardware and shape of tasks yet"
    if full:
        return None, "with nothing, as a full training is asked for"
    wanted = (config.training.cost_network, config.training.policy)
    if base.origin.networks != wanted:
        kinds = " and ".join(base.origin.networks)
        return None, f"with nothing: the networks of version {base.version} are {kinds}, not {' and '.join(wanted)}"
    if base.origin.dataset == dataset:
        warm, why = base.origin.warm, f"as version {base.version} did, whose tables these are"
    else:
        warm, why = _from(base, config), f"with what version {base.version} has learnt"
    unreadable = "" if warm is None else _why_unreadable(warm)
    return (None, f"with nothing: {unreadable}") if unreadable else (warm, why)


def _from(base: Version, config: Recipe) -> Warm:
    earlier: Sequence[str] = base.origin.warm.trainings if base.origin.warm else ()
    return Warm(
        version=base.version,
        training=base.training,
        iteration=base.iteration,
        trainings=(*earlier, base.training),
        measurement_s=base.origin.measurement_s,
        full_measurements=config.training.measurements,
    )


def _why_unreadable(warm: Warm) -> str:
    """Why there is nothing to go on from; empty where there is.

    Raises:
        ValueError: it cannot be read at present, which is no reason to learn it all again.
    """
    try:
        lineage.load(open_store(), warm)
    except ValueError as error:
        if passing(error):
            raise
        return str(error)
    return ""


def _halves(base: Version | None, config: Recipe, dataset: str, seed: int) -> str | None:
    """The task set whose halves are kept, where they are known and both then hold enough tables for a task."""
    if base is None or not has_table_split(home_lake(), base.origin.tasks):
        return None
    generator = torch.Generator().manual_seed(seed)
    halves = split_tables(
        home_lake().read_dataset(dataset), generator, read_table_split(home_lake(), base.origin.tasks)
    )
    return base.origin.tasks if min(map(len, halves)) >= config.tasks.tables_per_task else None
