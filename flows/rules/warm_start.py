"""Versions of one's own setting: the start of the next training, the newest, and the champion.

In the same setting (model, testbed, hardware, shape of the tasks, batch) and on other tables, a training continues from the
champion: from its networks and from the costs measured for it. On the same tables it repeats the champion's training. The
first training of a model continues from another model's on the same hardware.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from dreamshard.costs import is_simulated
from dreamshard.recipes import Recipe, recipe, with_batch_size
from dreamshard.testbeds import is_testbed
from dreamshard.workloads import known_as
from dreamshard.workloads.task_sampling import split_tables
from flows.forms.form import configure
from flows.forms.options import RecipeOptions
from storage.mlflow_store import registry
from storage.mlflow_store.registry import Version
from storage.run_records.trainings import Training, Warm, named_model
from storage.store import Store, open_store


@dataclass(frozen=True, kw_only=True)
class Start:
    """How a training starts.

    Attributes:
        warm: placer to continue from; None to start from scratch.
        split_of: key of the task sets whose table split is kept; None to draw a new split.
        why: the reason, as it follows "training ... starts".
    """

    warm: Warm | None = None
    split_of: str | None = None
    why: str


def find_start(store: Store, training: Training, *, full: bool = False) -> Start:
    """Start from the champion if its setting is the same, else from the newest version of this setting or hardware.

    Args:
        training: its known parts so far: recipe, tables and testbed.
        full: start from scratch all the same; the table split is kept, so that the champion is evaluated on tables that
            it was not trained on either.

    Raises:
        ValueError: another source's model has the name that this one would get by default; or the table split of the
            version to continue from is lost, and `full` is not given.
    """
    known = registry.versions(store)
    _check_name(known, training)
    same = [version for version in known if version.made_of.setting == training.setting]
    alike = same or [
        version
        for version in known
        if version.made_of.costs_setting == training.costs_setting and store.lake.has_table_split(version.made_of.tasks)
    ]
    if not alike:
        return Start(why="from scratch: no version was trained on this testbed, hardware and shape of tasks yet")
    base = next((version for version in alike if version.is_champion), alike[0])
    split_of = _kept_split(store, base, training, full=full)
    if full:
        return Start(split_of=split_of, why="from scratch, because a full training was requested")
    if split_of is None:
        return Start(why=f"from scratch with a new table split: that of {base} is too small")
    warm = base.made_of.warm
    if same and base.made_of.dataset == training.dataset:
        return Start(warm=warm, split_of=split_of, why=f"as {base} did, which was trained on the same tables")
    trainings = (*(warm.trainings if warm else ()), base.training)
    warm = Warm(version=base.uri, training=base.training, iteration=base.iteration, trainings=trainings)
    other = (
        "" if same else f", of another model on the same hardware, with cost samples of its {len(trainings)} trainings"
    )
    return Start(warm=warm, split_of=split_of, why=f"from {base}{other}")


def _check_name(known: Sequence[Version], training: Training) -> None:
    """Refuse a name that is of other tables already, unless both the name and the new tables are given."""
    others = {version.made_of.source for version in known if version.model == training.model}
    is_given = training.recipe.model and training.source != recipe(training.recipe.name).workload.source
    if others and not is_given and training.source not in map(known_as, others):
        raise ValueError(
            f"model {training.model} already has the tables of {min(others)}; give --source and --model {training.model} if "
            f"{training.source} replaces them, otherwise another name"
        )


def _kept_split(store: Store, base: Version, training: Training, *, full: bool) -> str | None:
    """The task sets whose table split is kept, if both parts hold enough tables for a task of a pool."""
    tasks = base.made_of.tasks
    if not store.lake.has_table_split(tasks):
        if full:
            return None
        raise ValueError(
            f"the table split of {base} is lost, so held-out tables may have been trained on; train from scratch with --full"
        )
    if training.is_fixed:
        return tasks
    split, generator = store.lake.read_table_split(tasks), torch.Generator().manual_seed(training.testbed.seed)
    parts = split_tables(store.lake.read_dataset(training.dataset), generator, split)
    return tasks if min(map(len, parts)) >= training.recipe.tasks.tables_per_task else None


def last_trained(store: Store, config: Recipe, dataset: str) -> str | None:
    """The dataset that the newest version like `config` was trained on, or None before the first.

    It is `dataset` itself if the champion or a newer version was trained on it: warm-starting from the champion would
    only repeat that training.
    """
    alike = [version for version in registry.versions(store) if _is_like(version.made_of, config)]
    champion = max((version.number for version in alike if version.is_champion), default=0)
    if any(version.made_of.dataset == dataset and version.number >= champion for version in alike):
        return dataset
    return alike[0].made_of.dataset if alike else None


def _is_like(made_of: Training, config: Recipe) -> bool:
    trained, tasks = made_of.recipe.tasks, config.tasks
    return (
        (made_of.recipe.name, made_of.model) == (config.name, named_model(config))
        and made_of.recipe.training.algorithm == config.training.algorithm
        and made_of.is_fixed == (tasks.mode == "fixed")
        and (made_of.is_fixed or trained.tables_per_task == tasks.tables_per_task)
        and trained.devices_per_host == tasks.devices_per_host
        and ("memory_bytes" in config.derived or trained.memory_bytes == tasks.memory_bytes - tasks.reserve_bytes)
        and _is_on(made_of, config)
    )


def opened(options: RecipeOptions) -> tuple[Recipe, Store]:
    """The store, and the recipe of the options with its batch size.

    If that is not given, it is the champion's of the model on these devices, so that costs over versions are a curve.
    """
    config, store = configure(options), open_store()
    champion = champion_of(store, config) if "batch_size" in config.derived else None
    if champion is None:
        return with_batch_size(config), store
    return replace(config, workload=replace(config.workload, batch_size=champion.made_of.testbed.batch_size)), store


def champion_of(store: Store, config: Recipe) -> Version | None:
    """The champion of the model, testbed and devices of a configuration; None before the first.

    If several kinds of hardware may be meant, as by the testbed `auto`, it is that of the model's default topology.
    """
    of_model = [v for v in registry.versions(store) if v.is_champion and v.model == named_model(config)]
    champions = [v for v in of_model if _is_on(v.made_of, config)]
    return max(champions, key=lambda v: v.is_default, default=None)


def _is_on(made_of: Training, config: Recipe) -> bool:
    is_same = is_testbed(config.testbed, made_of.testbed.kind, made_of.testbed.identity)
    is_other = config.testbed == "auto" and is_simulated(made_of.testbed.identity)  # `auto` never simulates
    return is_same and not is_other and made_of.recipe.tasks.num_devices == config.tasks.num_devices
