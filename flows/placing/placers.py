"""Placers by name or by hardware, to place tables that a person names."""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from dreamshard.costs import MeasuredOn
from dreamshard.hardware.accelerator import AcceleratorSpec, preset_of
from dreamshard.names import ALIASES, WRITTEN, VersionReference, in_words
from dreamshard.placement import Placement
from dreamshard.placer import NoPlacementError, Placer
from dreamshard.rivals import OF_TORCHREC, RIVALS, rival
from dreamshard.search import PARTS, DreamShardPlacer, RooflinePlacer, part_of
from dreamshard.search.baselines import baselines
from dreamshard.shards import violation
from dreamshard.tasks import PlacementTask
from storage.store import Store

PRIOR = "prior"
_CHAMPION = "champion"

Predictor = DreamShardPlacer | RooflinePlacer


@dataclass(frozen=True)
class Choice:
    """A placer, and what predicts the costs of its placements.

    Attributes:
        placer: that places.
        name: in a plan.
        predictor: None if nothing can predict.
        costs_of: what the predicted costs were measured on; None if that is unknown.
        why: why this one was chosen, for people; empty if the user named it.
        predicted_by: name of the predictor; None if it is the placer itself.
        caveat: why the version that places or predicts is provisional, for people; empty if it is not.
    """

    placer: Placer
    name: str
    predictor: Predictor | None = None
    costs_of: MeasuredOn | None = None
    why: str = ""
    predicted_by: str | None = None
    caveat: str = ""

    def place(self, task: PlacementTask, budget_ms: float | None) -> Placement:
        """A legal placement.

        Args:
            task: to be placed.
            budget_ms: work of a search; None for the placer's own.

        Raises:
            NoPlacementError: none was found, or the placer's violates a constraint.
        """
        placement = self.placer.place(task, budget_ms)
        if reason := violation(task, placement):
            raise NoPlacementError(
                f"the placement that {self.name} found violates a constraint: {reason}; loosen it, or use another placer, "
                "for example prior with --hardware, or the champion"
            )
        return placement


def trained_for(store: Store, name: str) -> dict[str, Any]:
    """Devices, devices per host and GiB of each that a version was trained for, as far as it says; empty without one."""
    if not store.settings.has_registry or not VersionReference.of(name).is_valid:
        return {}
    from storage.mlflow_store import registry, versions

    if name == "champion" and registry.champion(store.settings) is None:
        return {}
    row = versions.version(store.settings, name)
    found = {
        "num_devices": row.get("devices"),
        "devices_per_host": row.get("devices_per_host"),
        "memory_gb": row.get("memory_gb"),
    }
    kinds = {"num_devices": int, "devices_per_host": int, "memory_gb": float}
    return {name: kinds[name](value) for name, value in found.items() if value}


def choose(
    store: Store,
    name: str | None,
    task: PlacementTask,
    spec: AcceleratorSpec | None,
    called: str = "",
    *,
    note: Callable[[str], None],
) -> Choice:
    """The placer called `name`, or the best one for the hardware: a version, or the preset itself.

    Args:
        store: with the registry.
        name: None for the champion, or for the best on `spec`.
        task: to be placed.
        spec: hardware that the plan is for; None if that is not said.
        called: how the user calls it.
        note: gets sentences for people.

    Raises:
        ValueError: there is no such placer; the message lists the existing ones.
    """
    if name in (*baselines(), *RIVALS, *PARTS):
        return _rule_or_rival(store, str(name), task, spec, called, note)
    if name == PRIOR and spec is None:
        raise ValueError(
            "the prior placer places by the figures of some hardware; add for example --hardware h100, or a file"
        )
    if spec is not None and name == PRIOR:
        return _prior(spec, task)
    if spec is not None and name is None:
        return _for_hardware(store, task, spec, called)
    return _version(store, name or "champion")


def _for_hardware(store: Store, task: PlacementTask, spec: AcceleratorSpec, called: str) -> Choice:
    """The best placer for some hardware that there is without measuring."""
    if store.settings.has_registry:
        from flows.decisions.versions_by_hardware import find_version
        from storage.mlflow_store import registry

        if (found := find_version(store, spec, task)) is not None:
            placer = registry.load_predictor(found.version, store.settings)
            name = in_words(found.version)
            why = f"{name}{found.alias_note} places: its costs are of {found.measured_on}"
            return Choice(placer, name, placer, found.measured_on, why, caveat=found.caveat)
    return _prior(
        spec,
        task,
        f"no version was trained on {called}, so the prior placer places, by published figures alone; to learn from "
        f"measurements, train with `dreamshard run --source TABLES --devices {task.num_devices}` on the machine (minutes), "
        f"or with `--testbed simulated:{called}` without it",
    )


def _prior(spec: AcceleratorSpec, task: PlacementTask, why: str = "") -> Choice:
    placer = RooflinePlacer(spec)
    return Choice(placer, PRIOR, placer, placer.measured_on(task), why)


def _rule_or_rival(
    store: Store,
    name: str,
    task: PlacementTask,
    spec: AcceleratorSpec | None,
    called: str,
    note: Callable[[str], None],
) -> Choice:
    """A placer whose costs another one predicts: the best for the hardware, or the champion if there is one.

    Raises:
        ValueError: it places by learned costs and there are none, or it would have to measure some.
    """
    if spec is not None:
        best = _for_hardware(store, task, spec, called)
        why = f"costs by {best.name}: {best.why}"
    else:
        best, why = _champion(store), ""
    learned = best.predictor if isinstance(best.predictor, DreamShardPlacer) else None
    if spec is None and best.costs_of is not None:
        spec = preset_of(best.costs_of.hardware)
    if name in OF_TORCHREC and spec is None:
        note(f"{name}: assumes TorchRec's default bandwidths; say --hardware for those of the devices")
    if name in PARTS and learned is None:
        raise ValueError(
            f"{name} places by a trained cost network and there is none; train one with `dreamshard run`, or give "
            "a rule of thumb, which needs none"
        )
    placer: Placer
    if name in PARTS and learned is not None:
        placer = part_of(name, learned)
    else:
        placer = baselines().get(name) or rival(name, learned, spec=spec)
    return Choice(placer, name, best.predictor, best.costs_of, why, best.name, best.caveat)


def _champion(store: Store) -> Choice:
    """The champion; without a predictor before the first one."""
    if store.settings.has_registry:
        from storage.mlflow_store import registry

        if registry.champion(store.settings) is not None:
            return _version(store, "champion")
    return Choice(baselines()["random"], _CHAMPION)


def _version(store: Store, name: str) -> Choice:
    """A version by reference."""
    from storage.mlflow_store import registry
    from storage.run_records.lineage import measured_on

    reference = VersionReference.of(name)
    if not reference.is_valid:
        others = sorted([*baselines(), *RIVALS, *PARTS, PRIOR])
        alike = get_close_matches(name, [*others, *ALIASES], n=1)
        meant = f"did you mean {alike[0]!r}? Or " if alike else ""
        raise ValueError(f"there is no placer {name!r}; {meant}give a version ({WRITTEN}), or one of {others}")
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
    if not isinstance(placer, DreamShardPlacer):
        best = _champion(store)
        why = f"{called} predicts no cost of a step; {best.name} does" if best.predictor else ""
        return Choice(placer, called, best.predictor, best.costs_of, why, best.name, caveat)
    return Choice(placer, called, placer, placer.cost_network.measured_on or measured_on(tags), caveat=caveat)
