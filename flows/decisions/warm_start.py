"""What the next training starts from.

In the same setting (testbed, hardware, shape of the tasks, batch) and on other tables, a training continues from the
champion of that topology: from its networks and from the costs measured for it. On the same tables it repeats the
champion's training. A try-out is never continued from.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from dreamshard.recipes import Recipe, TasksConfig
from dreamshard.task_sets.sampling import split_tables
from dreamshard.training import TrainingConfig
from dreamshard.workloads import known_as
from flows.runtime.retries import passing
from flows.runtime.testbed_pool import TestbedReference
from storage.lake.table_splits import has_table_split, read_table_split
from storage.mlflow_store import registry
from storage.run_records import lineage
from storage.run_records.lineage import ALL_TABLES, Origin, Setting, Version, Warm
from storage.store import Store


@dataclass(frozen=True, kw_only=True)
class StartReason:
    """Why a training starts as it does.

    Attributes:
        code: rule that decided.
        version: version that the rule looked at; empty for `first` and `full`.
        detail: algorithms of that version and of the recipe for `other_algorithm`; the error for `unreadable`.
    """

    code: Literal["first", "full", "other_algorithm", "same_tables", "other_tables", "unreadable", "split_gone"]
    version: str = ""
    detail: str = ""

    @property
    def sentence(self) -> str:
        """The reason for people, as it follows "training ... starts"."""
        return {
            "first": "from nothing: no version was trained on this testbed, hardware and shape of tasks yet",
            "full": "from nothing, because a full training was requested",
            "other_algorithm": f"from nothing: version {self.version} is of {self.detail}",
            "same_tables": f"as version {self.version} did, which was trained on the same tables",
            "other_tables": f"from version {self.version}",
            "unreadable": f"from nothing: {self.detail}",
            "split_gone": f"from nothing with a new table split: that of version {self.version} is gone or too small",
        }[self.code]


@dataclass(frozen=True, kw_only=True)
class WarmStart:
    """How a training starts.

    Attributes:
        recipe: name of the recipe.
        source: source of the tables.
        setting: see `lineage.Setting`.
        memory_bytes: memory of each device.
        config: configuration of the iterations to run.
        split_of: key of the task sets whose table split is kept; None to draw a new split.
        warm: placer to continue from; None to start from nothing.
        reason: why.
    """

    recipe: str
    source: str
    setting: Setting
    memory_bytes: int
    config: TrainingConfig
    split_of: str | None
    warm: Warm | None
    reason: StartReason

    def origin(self, dataset: str, tasks: str) -> Origin:
        """The origin of the training that starts like this."""
        return Origin(
            recipe=self.recipe,
            source=self.source,
            dataset=dataset,
            tasks=tasks,
            setting=self.setting,
            warm=self.warm,
            memory_bytes=self.memory_bytes,
            algorithm=self.config.algorithm,
        )


def find_warm_start(store: Store, config: Recipe, dataset: str, testbed: TestbedReference, *, full: bool) -> WarmStart:
    """Start from the champion if its setting is the same, else from the newest version of this setting, if any.

    Args:
        dataset: version of the tables to train on.
        full: start from nothing nevertheless; the table split is kept, so that the champion is evaluated on tables that
            it was not trained on either.

    Raises:
        ValueError: the version to continue from cannot be read at present.
    """
    setting = setting_of(config, testbed)
    base = _base_version(store, setting, config.workload.source)
    warm, reason = _warm(store, base, config, dataset, full)
    split_of = _kept_split(store, base, config, dataset, testbed.seed)
    if base is not None and split_of is None:
        warm, reason = None, StartReason(code="split_gone", version=base.version)
    return WarmStart(
        recipe=config.name,
        source=config.workload.source,
        setting=setting,
        memory_bytes=config.tasks.memory_bytes,
        config=config.training if warm is None else config.training.warm(),
        split_of=split_of,
        warm=warm,
        reason=reason,
    )


def setting_of(config: Recipe, testbed: TestbedReference) -> Setting:
    """Everything besides its tables that a placer depends on."""
    tasks, measure = config.tasks, testbed.measure
    return {
        "testbed": testbed.kind,
        "hardware": testbed.identity,
        "devices": tasks.num_devices,
        **tables_setting(tasks),
        "precision": tasks.precision,
        "optimizer": tasks.optimizer,
        "batch": testbed.batch_size,
        "warm-ups": measure.warmups,
        "repeats": measure.repeats,
        **({"devices per host": tasks.devices_per_host} if tasks.devices_per_host else {}),
    }


def tables_setting(tasks: TasksConfig) -> Setting:
    """The part of a setting that says of which tables tasks are made."""
    return {"tables per task": ALL_TABLES if tasks.mode == "fixed" else tasks.tables_per_task}


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


def _warm(
    store: Store, base: Version | None, config: Recipe, dataset: str, full: bool
) -> tuple[Warm | None, StartReason]:
    if base is None:
        return None, StartReason(code="first")
    if full:
        return None, StartReason(code="full")
    if base.origin.algorithm != config.training.algorithm:
        detail = f"{base.origin.algorithm}, not {config.training.algorithm}"
        return None, StartReason(code="other_algorithm", version=base.version, detail=detail)
    if base.origin.dataset == dataset:
        warm, reason = base.origin.warm, StartReason(code="same_tables", version=base.version)
    else:
        warm, reason = _continue(base, config), StartReason(code="other_tables", version=base.version)
    error = "" if warm is None else _read_error(store, warm)
    return (None, StartReason(code="unreadable", version=base.version, detail=error)) if error else (warm, reason)


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


def _read_error(store: Store, warm: Warm) -> str:
    """Why the placer to continue from is lost; empty where it can be read.

    Raises:
        ValueError: it cannot be read at present, which is no reason to train from nothing.
    """
    try:
        registry.load_placer(warm.version, store.settings)
    except ValueError as error:
        if passing(error):
            raise
        return str(error)
    return ""


def _kept_split(store: Store, base: Version | None, config: Recipe, dataset: str, seed: int) -> str | None:
    """The task sets whose table split is kept, if it is known and both parts hold enough tables for a task of a pool."""
    if base is None or not has_table_split(store.lake, base.origin.tasks):
        return None
    if config.tasks.mode == "fixed":
        return base.origin.tasks
    generator = torch.Generator().manual_seed(seed)
    parts = split_tables(store.lake.read_dataset(dataset), generator, read_table_split(store.lake, base.origin.tasks))
    return base.origin.tasks if min(map(len, parts)) >= config.tasks.tables_per_task else None
