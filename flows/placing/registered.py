"""Placing by the registry's versions; apart from the rest, because MLflow takes seconds to import."""

from typing import Any

from dreamshard.hardware.accelerator import AcceleratorSpec
from dreamshard.search import DreamShardPlacer
from dreamshard.tasks import PlacementTask
from flows.placing.placers import Choice
from flows.rules.versions_by_hardware import find_version
from storage.mlflow_store import registry
from storage.store import Store
from storage.version_names import in_words


def champion_dataset(store: Store) -> str | None:
    """The data set that the champion was trained on; None before the first champion."""
    champion = registry.champion(store.settings)
    return None if champion is None else champion.tags.get("dataset")


def sizes_of(store: Store, name: str) -> dict[str, Any]:
    """Devices, devices per host and GiB of each that a version was trained for, as far as it says; empty without one."""
    if name == "champion" and registry.champion(store.settings) is None:
        return {}
    tasks = registry.find(store.settings, name).made_of.recipe.tasks
    sizes = {
        "devices": tasks.num_devices,
        "devices_per_host": tasks.devices_per_host,
        "memory_gb": tasks.memory_bytes / 2**30,
    }
    return {name: size for name, size in sizes.items() if size}


def for_hardware(store: Store, task: PlacementTask, spec: AcceleratorSpec) -> Choice | None:
    """The best version for some hardware; None if none was trained on it."""
    if (found := find_version(store, spec, task)) is None:
        return None
    placer = registry.load_predictor(found.uri, store.settings)
    standing = f" ({found.standing})" if found.standing else ""
    why = f"{found}{standing} places: its costs are of {found.measured_on}"
    caveat = f"{found} is {found.provisional}" if found.provisional else ""
    return Choice(placer, str(found), placer, found.measured_on, why, caveat=caveat)


def champion(store: Store) -> Choice | None:
    """The champion; None before the first one."""
    return version(store, "champion") if registry.champion(store.settings) is not None else None


def version(store: Store, name: str) -> Choice:
    """A version by a valid reference; if it predicts no cost of a step, the champion does.

    Raises:
        ValueError: there is no such version.
    """
    try:
        placer = registry.load_placer(name, store.settings)
    except ValueError as error:
        raise ValueError(
            f"{error}; to place without a version, give --hardware (for example h100), or --placer with a rule of thumb, "
            "e.g. lookup_greedy"
        ) from error
    found, called = registry.find(store.settings, name), in_words(name)
    caveat = f"{called} is {found.provisional}" if found.provisional else ""
    if isinstance(placer, DreamShardPlacer):
        return Choice(placer, called, placer, placer.cost_network.measured_on, caveat=caveat)
    best = champion(store) if name != "champion" else None
    if best is None or best.predictor is None:
        return Choice(placer, called, caveat=caveat)
    why = f"{called} predicts no cost of a step; {best.name} does"
    return Choice(placer, called, best.predictor, best.costs_of, why, best.name, caveat)
