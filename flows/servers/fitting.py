"""Whether a scheduled retraining could place its tables, found out before anything is started."""

from collections.abc import Callable

import torch

from dreamshard.files.text import gib
from dreamshard.names import DEFAULT_ALGORITHM, SIMULATED
from dreamshard.placer import NoPlacementError
from dreamshard.recipes import Recipe, TasksConfig
from dreamshard.sizing import sized, with_batch_size
from dreamshard.tables import Tables
from dreamshard.task_sets.fixed_model import MODEL, split_to_fit
from dreamshard.task_sets.sampling import split_tables
from dreamshard.testbeds.capacity import Capacity
from dreamshard.workloads import change_token, fill_missing_columns, is_function, listed_sizes
from dreamshard.workloads.addresses import is_file, is_folder
from flows.forms.configuration import configure
from flows.forms.options import RetrainingOptions
from flows.runtime import testbed_pool
from flows.runtime.sources import torchrec_bridge
from storage.schedule import Schedule
from storage.store import Store

_UNKNOWN = Capacity(kind="unknown")


def check_fit(schedule: Schedule, store: Callable[[], Store], *, measures_here: bool) -> list[str]:
    """Check that what the scheduled flows retrain for can be placed, as far as this machine can tell.

    Args:
        store: opens the home, to ask the testbed for the memory of its devices.
        measures_here: this machine runs the flows, so its devices are those of the testbed.

    Returns:
        Sentences on what was chosen, or what could not be checked.

    Raises:
        ValueError: the setting contradicts itself, there is no such source, or its tables cannot be placed.
    """
    if schedule == Schedule():
        return []  # a recipe's own tables fit its own sizes
    options = RetrainingOptions(**schedule.parameters())
    config = configure(options)
    is_known_here = measures_here or config.testbed.partition(":")[0] == SIMULATED
    capacity = testbed_pool.check_testbed(store(), config) if is_known_here else _UNKNOWN
    is_batch_known = is_known_here or "batch_size" not in config.derived
    batch = f"batches of {with_batch_size(config).workload.batch_size} samples, " if is_batch_known else ""
    tables, notes = _tables(config, must_be_here=measures_here)
    if tables is None:
        return notes
    if "memory_bytes" in config.derived and not is_known_here:
        only = f"only a worker knows the memory of testbed {config.testbed}"
        return [*notes, f"{only}, so whether the tables of {config.workload.source} fit was not checked"]
    try:
        settled, _ = sized(config, tables, capacity)
        _place(settled.tasks, tables, options.seed)
    except (ValueError, NoPlacementError) as error:
        raise ValueError(
            f"the scheduled flows could not train on {config.workload.source}: {error}; give other --devices, --memory-gb, "
            "--tables-per-task or --mode"
        ) from error
    return [
        *notes,
        _chosen(config, settled.tasks, len(tables), batch),
        *_not_all_at_once(config, settled.tasks, tables),
    ]


def _chosen(config: Recipe, tasks: TasksConfig, num_tables: int, batch: str) -> str:
    derived = " (derived)" if "memory_bytes" in config.derived else ""
    if tasks.mode == "fixed":
        what = f"one model of all {num_tables} tables"
    else:
        other = "; --mode fixed if all are one model" if config.tasks.mode == "auto" else ""
        what = f"a pool (tasks of {tasks.tables_per_task} of {num_tables} tables{other})"
    own = config.training.algorithm
    algorithm = "" if own == DEFAULT_ALGORITHM else f", algorithm {own}"
    return (
        f"scheduled retraining of {config.workload.source}: {what} on {tasks.num_devices} devices of "
        f"{gib(tasks.memory_bytes)}{derived}, {batch}recipe {config.name}, testbed "
        f"{config.testbed}{algorithm}"
    )


def _not_all_at_once(config: Recipe, tasks: TasksConfig, tables: Tables) -> list[str]:
    """A warning where a pool's tables, which may be one model after all, are more than the devices hold together."""
    if tasks.mode == "fixed" or config.tasks.mode != "auto":
        return []
    try:
        tasks.of_all(tables, config.workload.source)
    except ValueError as error:
        return [
            f"warning: {str(error).partition(', so ')[0]}; each task of the pool fits, but if all {len(tables)} tables are "
            "one model, give --mode fixed and more --devices or --memory-gb"
        ]
    return []


def _tables(config: Recipe, *, must_be_here: bool) -> tuple[Tables | None, list[str]]:
    """The tables with their sizes, or None and a note why they are not known.

    Raises:
        ValueError: there is no such source on any machine, or not here where it must be.
    """
    workload = config.workload
    unknown = "so whether its tables fit was not checked"
    is_model = is_function(workload.source)
    is_address = workload.source.startswith("/") or "://" in workload.source or "::" in workload.source
    try:
        if is_model:
            tables: Tables = torchrec_bridge().tables_of(_made(workload.source)).tables
            return tables, []
        if must_be_here or not is_address:
            change_token(workload.source)  # looks for it
        if is_address and not is_file(workload.source) and not is_folder(workload.source):
            return None, [f"{workload.source} is not on this machine, {unknown}; workers have to read it"]
    except ValueError as error:
        if must_be_here or not (is_model or is_address):
            raise ValueError(f"the scheduled flows would have no tables: {error}") from error
        return None, [f"{error}; {workload.source} was not read, {unknown}; workers have to read it"]
    listed = listed_sizes(workload)
    if listed is None:
        return None, [f"sizes of the tables of {workload.source} are known once it is ingested, {unknown}"]
    return fill_missing_columns(listed).tables, []


def _made(source: str) -> object:
    from dreamshard.workloads import call

    return call(source, "its tables are unknown")


def _place(tasks: TasksConfig, tables: Tables, seed: int) -> None:
    """Draw the tasks of a training from nothing, as `flows.tasks.drawing` does.

    Raises:
        ValueError: a task fits no placement.
        NoPlacementError: a fixed model fits none.
    """
    if tasks.mode == "fixed":
        split_to_fit(tasks.of_all(tables, MODEL))
        return
    generator = torch.Generator().manual_seed(seed)
    counts = {"train": tasks.num_train, "test": tasks.num_test}
    for (name, count), part in zip(counts.items(), split_tables(tables, generator), strict=True):
        tasks.drawn_from(part, count, generator, name)
