"""What the registry's versions say of placing; apart from the rest, because MLflow takes seconds to import."""

from typing import Any

from dreamshard.hardware.accelerator import AcceleratorSpec
from dreamshard.search import DreamShardPlacer
from dreamshard.tasks import PlacementTask
from flows.decisions.versions_by_hardware import find_version
from flows.placing.placers import Choice
from storage.mlflow_store import registry, versions
from storage.mlflow_store.version_names import VersionReference, in_words
from storage.run_records.lineage import measured_on
from storage.store import Store


def champion_dataset(store: Store) -> str | None:
    """The data set that the champion was trained on; None before the first champion."""
    champion = registry.champion(store.settings)
    return None if champion is None else registry.version_tags(store.settings, champion).get("dataset")


def sizes_of(store: Store, name: str) -> dict[str, Any]:
    """Devices, devices per host and GiB of each that a version was trained for, as far as it says; empty without one."""
    if name == "champion" and registry.champion(store.settings) is None:
        return {}
    row = versions.version(store.settings, name)
    kinds = {"devices": int, "devices_per_host": int, "memory_gb": float}
    return {name: kind(row[name]) for name, kind in kinds.items() if row.get(name)}


def for_hardware(store: Store, task: PlacementTask, spec: AcceleratorSpec) -> Choice | None:
    """The best version for some hardware; None if none was trained on it."""
    if (found := find_version(store, spec, task)) is None:
        return None
    placer, name = registry.load_predictor(found.version, store.settings), in_words(found.version)
    why = f"{name}{found.alias_note} places: its costs are of {found.measured_on}"
    return Choice(placer, name, placer, found.measured_on, why, caveat=found.caveat)


def champion(store: Store) -> Choice | None:
    """The champion; None before the first one."""
    return version(store, "champion") if registry.champion(store.settings) is not None else None


def version(store: Store, name: str) -> Choice:
    """A version by a valid reference; if it predicts no cost of a step, the champion does.

    Raises:
        ValueError: there is no such version.
    """
    reference = VersionReference.of(name)
    try:
        placer = registry.load_placer(str(reference), store.settings)
    except ValueError as error:
        raise ValueError(
            f"{error}; to place without a version, give --hardware (for example h100), or --placer with a rule of thumb, "
            "e.g. lookup_greedy"
        ) from error
    tags, called = registry.version_tags(store.settings, str(reference)), reference.in_words
    provisional = registry.provisional_note(tags)
    caveat = f"{called} is {provisional}" if provisional else ""
    if isinstance(placer, DreamShardPlacer):
        costs_of = placer.cost_network.measured_on or measured_on(tags)
        return Choice(placer, called, placer, costs_of, caveat=caveat)
    best = champion(store) if str(reference) != "champion" else None
    if best is None or best.predictor is None:
        return Choice(placer, called, caveat=caveat)
    why = f"{called} predicts no cost of a step; {best.name} does"
    return Choice(placer, called, best.predictor, best.costs_of, why, best.name, caveat)
