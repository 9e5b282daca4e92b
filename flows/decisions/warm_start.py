"""What the next training starts from.

In the same setting (testbed, hardware, shape of the tasks, batch) and on other tables, a training continues from the
champion of that topology: from its networks and from the costs measured for it. On the same tables it repeats the
champion's training. A try-out is never continued from.
"""

from dataclasses import dataclass

import torch

from dreamshard.recipes import Recipe
from dreamshard.task_sets.sampling import split_tables
from dreamshard.workloads import known_as
from storage.lake.table_splits import has_table_split, read_table_split
from storage.mlflow_store.version_names import in_words
from storage.run_records import lineage
from storage.run_records.lineage import ALL_TABLES, Origin, Setting, Version, Warm
from storage.run_records.trainings import TestbedReference, setting_of
from storage.store import Store


@dataclass(frozen=True, kw_only=True)
class Start:
    """How a training starts.

    Attributes:
        warm: placer to continue from; None to start from nothing.
        split_of: key of the task sets whose table split is kept; None to draw a new split.
        why: the reason, as it follows "training ... starts".
    """

    warm: Warm | None
    split_of: str | None
    why: str


def find_start(store: Store, config: Recipe, dataset: str, testbed: TestbedReference, *, full: bool) -> Start:
    """Start from the champion if its setting is the same, else from the newest version of this setting, if any.

    Args:
        dataset: version of the tables to train on.
        full: start from nothing nevertheless; the table split is kept, so that the champion is evaluated on tables that
            it was not trained on either.

    Raises:
        ValueError: the table split of the version to continue from is lost, and `full` is not given.
    """
    base = _base_version(store, setting_of(config, testbed), config.workload.source)
    if base is None:
        why = "from nothing: no version was trained on this testbed, hardware and shape of tasks yet"
        return Start(warm=None, split_of=None, why=why)
    split_of = _kept_split(store, base, config, dataset, testbed.seed, full)
    if full:
        return Start(warm=None, split_of=split_of, why="from nothing, because a full training was requested")
    if split_of is None:
        why = f"from nothing with a new table split: that of {in_words(base.version)} is too small"
        return Start(warm=None, split_of=None, why=why)
    if base.origin.dataset == dataset:
        why = f"as {in_words(base.version)} did, which was trained on the same tables"
        return Start(warm=base.origin.warm, split_of=split_of, why=why)
    return Start(warm=_continue(base, config), split_of=split_of, why=f"from {in_words(base.version)}")


def learns_fixed_model(origin: Origin) -> bool:
    """Whether a training learnt one model, so that no table was held out."""
    return origin.setting.get("tables per task") == ALL_TABLES


def _base_version(store: Store, setting: Setting, source: str) -> Version | None:
    """The version to start from; for a fixed model, one of the same source."""
    versions = [
        version
        for version in lineage.versions(store)
        if version.origin.setting == setting
        and not version.is_tryout
        and (known_as(version.origin.source) == source or not learns_fixed_model(version.origin))
    ]
    newest = versions[0] if versions else None
    return next((version for version in versions if version.is_champion), newest)


def _continue(base: Version, config: Recipe) -> Warm:
    earlier = base.origin.warm.trainings if base.origin.warm else ()
    return Warm(
        version=base.version,
        training=base.training,
        iteration=base.iteration,
        trainings=(*earlier, base.training),
        measurement_s=base.origin.measurement_s,
        full_measurements=config.training.measurements,
    )


def _kept_split(store: Store, base: Version, config: Recipe, dataset: str, seed: int, full: bool) -> str | None:
    """The task sets whose table split is kept, if both parts hold enough tables for a task of a pool.

    Raises:
        ValueError: the split is lost, and not everything is to be drawn again.
    """
    tasks = base.origin.tasks
    if not has_table_split(store.lake, tasks):
        if full:
            return None
        raise ValueError(
            f"the table split of {in_words(base.version)} is lost, so held-out tables may have been trained on; train from "
            "nothing with --full"
        )
    if config.tasks.mode == "fixed":
        return tasks
    split = read_table_split(store.lake, tasks)
    parts = split_tables(store.lake.read_dataset(dataset), torch.Generator().manual_seed(seed), split)
    return tasks if min(map(len, parts)) >= config.tasks.tables_per_task else None
