"""Placers by name or by hardware, to place tables that a person names."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from dreamshard.costs import MeasuredOn, is_named, is_simulated
from dreamshard.hardware.accelerator import AcceleratorSpec, preset_of
from dreamshard.planning import PLACERS, load_placer, placer_called
from dreamshard.rivals import RIVALS
from dreamshard.search import DreamShardPlacer, RooflinePlacer, SearchingPlacer
from dreamshard.tasks import PlacementTask, Placer
from storage.mlflow_store import registry
from storage.mlflow_store.registry import Version
from storage.run_records.trainings import WRITTEN, names_version
from storage.store import Store

PRIOR = "prior"


@dataclass(frozen=True)
class Choice:
    """A placer, and the predictor of its placements' costs.

    Attributes:
        placer: that places.
        name: in a plan.
        predictor: None if nothing can predict.
        why: why this one was chosen, for people; empty if the user named it.
        predicted_by: name of the predictor; None if it is the placer itself.
        caveat: why the version that places or predicts is provisional, for people; empty if it is not.
    """

    placer: Placer
    name: str
    predictor: SearchingPlacer | None = None
    why: str = ""
    predicted_by: str | None = None
    caveat: str = ""


def choose(
    store: Store,
    name: str | None,
    task: PlacementTask,
    spec: AcceleratorSpec | None,
    called: str = "",
    *,
    model: str = "",
    note: Callable[[str], None],
) -> Choice:
    """The placer called `name`, or the best one for the hardware: a version, or the preset itself.

    Args:
        store: with the registry.
        name: None for the champion, or for the best on `spec`.
        task: to be placed.
        spec: hardware that the plan is for; None if that is not said.
        called: how the user calls it.
        model: that the task is of; empty if it has no versions, so that another model's may place it.
        note: gets sentences for people.

    Raises:
        ValueError: there is no such placer; the message lists the existing ones. Or it places by learned costs and there
            are none, or it would have to measure some.
    """
    if name in PLACERS:  # another placer predicts its costs: the best for the hardware, or a champion if there is one
        best, champion = None, registry.champion(store, model) or registry.champion(store)
        if spec is not None:
            best = _for_hardware(store, task, spec, called, model)
        elif champion is not None:
            best = _version(store, champion.uri)
        learned = best.predictor if best and isinstance(best.predictor, DreamShardPlacer) else None
        origin = best.predictor.measured_on(task) if best and best.predictor else None
        if spec is None and origin is not None:
            spec = preset_of(origin.hardware)
        if name in RIVALS and spec is None:
            note(f"{name} assumes TorchRec's default bandwidths; give --hardware to use the devices'")
        placer = placer_called(name, learned, spec)
        if best is None:
            return Choice(placer, name)
        why = best.why and f"costs by {best.name}: {best.why}"
        return replace(best, placer=placer, name=name, why=why, predicted_by=best.name)
    if name == PRIOR:
        if spec is None:
            raise ValueError("placer prior needs hardware figures; give for example --hardware h100, or a file")
        return _prior(spec)
    if name is not None and ("/" in name or Path(name).is_dir()) and not names_version(name):
        saved = load_placer(name)
        return Choice(saved, name, saved if isinstance(saved, DreamShardPlacer) else None)
    if spec is not None and name is None:
        return _for_hardware(store, task, spec, called, model)
    name = name or "champion"
    if not names_version(name):
        others = ", ".join(sorted([*PLACERS, PRIOR]))
        raise ValueError(f"there is no placer {name!r}; give a version ({WRITTEN}), or one of {others}")
    if name == "champion" and not (model and registry.champion(store, model)):
        version = registry.champion(store)
        if version is not None:
            why = f"no champion is of this model, so {version} of {version.model} places"
            return replace(_version(store, version.uri), why=why)
    return _version(store, name, model)


def _for_hardware(store: Store, task: PlacementTask, spec: AcceleratorSpec, called: str, model: str) -> Choice:
    """The best placer for some hardware that there is without measuring."""
    if (version := _version_on(store, spec, task, model)) is not None:
        standing = f" ({version.standing})" if version.standing else ""
        why = f"{version}{standing} places: its costs are of {version.measured_on}"
        return replace(_version(store, version.uri), why=why)
    return _prior(
        spec,
        f"no version was trained on {called}, so the prior placer uses published figures; to learn, run `dreamshard run "
        f"--source TABLES --devices {task.num_devices}` on that machine, or add --testbed simulated:{called} on this one",
    )


def _prior(spec: AcceleratorSpec, why: str = "") -> Choice:
    placer = RooflinePlacer(spec)
    return Choice(placer, PRIOR, placer, why)


def _version(store: Store, name: str, model: str = "") -> Choice:
    """A version by a valid reference; if it predicts no cost of a step, the champion does.

    Raises:
        ValueError: there is no such version.
    """
    try:
        version = registry.find(store, name, model)
        placer = registry.load_placer(version.uri, store)
    except ValueError as error:
        raise ValueError(
            f"{error}; to place without a version, give --hardware (for example h100), or --placer with a heuristic, "
            "e.g. lookup_greedy"
        ) from error
    called = str(version)
    caveat = f"{called} is {version.provisional}" if version.provisional else ""
    if isinstance(placer, DreamShardPlacer):
        return Choice(placer, called, placer, caveat=caveat)
    others = (v for v in registry.versions(store) if v.is_champion and v.algorithm != version.algorithm)
    ours = sorted(others, key=lambda v: v.registered_model != version.registered_model)  # stable: then the newest
    best = _version(store, ours[0].uri) if ours else None
    if best is None or best.predictor is None:
        return Choice(placer, called, caveat=caveat)
    why = f"{called} predicts no cost of a step; {best.name} does"
    return replace(best, placer=placer, name=called, why=why, predicted_by=best.name, caveat=caveat)


def _version_on(store: Store, spec: AcceleratorSpec, task: PlacementTask, model: str) -> Version | None:
    """The version to place a task on hardware by, or None if none was measured on it, on as many hosts.

    Versions of the task's model come first. Of these, the champion of as many devices and hosts comes first, then that of
    the model's default topology, then champions of other topologies, then versions of as many devices, then measured before
    simulated ones, then the newest.
    """

    def preference(version: Version, origin: MeasuredOn) -> tuple[bool, ...]:
        return (
            version.model == model,
            version.is_champion and origin.shares_hosts_as(task),
            version.is_champion and version.is_default,
            version.is_champion,
            origin.num_devices == task.num_devices,
            not is_simulated(origin.hardware),
        )

    known = [
        (version, origin)
        for version in registry.versions(store)
        if (origin := version.measured_on) and is_named(spec.name, origin.hardware)
    ]
    ranked = sorted(known, key=lambda pair: preference(*pair), reverse=True)  # stable: of those alike, the newest
    return next((version for version, origin in ranked if _serves(store, version, origin, spec, task)), None)


def _serves(store: Store, version: Version, origin: MeasuredOn, spec: AcceleratorSpec, task: PlacementTask) -> bool:
    """Whether its communication is that of the task's devices and hosts.

    It is if placements of as many devices were measured, if neither leaves a host, or if all-to-alls of the task's
    topology were measured.
    """
    hosts, wanted = _hosts(origin, spec), _hosts(task, spec)
    if hosts == wanted == 1 or (hosts == wanted and origin.num_devices == task.num_devices):
        return True
    placer = registry.load_placer(version.uri, store)
    return isinstance(placer, DreamShardPlacer) and placer.knows_topology(task)


def _hosts(of: MeasuredOn | PlacementTask, spec: AcceleratorSpec) -> int:
    return -(-of.num_devices // (of.devices_per_host or spec.devices_per_host))
