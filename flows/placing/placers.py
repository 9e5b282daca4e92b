"""Placers by name or by hardware, to place tables that a person names."""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from dreamshard.hardware.accelerator import AcceleratorSpec
    from dreamshard.measured_on import MeasuredOn
    from dreamshard.placement import Placement
    from dreamshard.placer import Placer
    from dreamshard.search import DreamShardPlacer, RooflinePlacer
    from dreamshard.tasks import PlacementTask
    from storage.store import Store

    Predictor: TypeAlias = DreamShardPlacer | RooflinePlacer

PRIOR = "prior"


@dataclass(frozen=True)
class Choice:
    """A placer, and what predicts the costs of its placements.

    Attributes:
        placer: that places.
        name: in a plan.
        predictor: None where nothing can predict.
        costs_of: what the predicted costs were measured on; None where that is unknown.
        why: why this one was chosen, for people; empty where the user named it.
        predicted_by: what the predictor is called; None where it is the placer itself.
        version: of the predictor in the registry; None where it has none.
        caveat: why the version that places or predicts is provisional, for people; empty if it is not.
    """

    placer: "Placer"
    name: str
    predictor: "Predictor | None"
    costs_of: "MeasuredOn | None"
    why: str = ""
    predicted_by: str | None = None
    version: str | None = None
    caveat: str = ""

    def place(self, task: "PlacementTask", budget_ms: float | None) -> "Placement":
        """A legal placement; rules of thumb place whole tables, rivals also columns.

        Args:
            task: to be placed.
            budget_ms: work of a search; None for the placer's own.

        Raises:
            NoPlacementError: none was found, or the placer's violates a constraint.
        """
        from dreamshard.placer import NoPlacementError
        from dreamshard.shards import violation

        placement = self.placer.place(task, budget_ms)
        if reason := violation(task, placement):
            raise NoPlacementError(
                f"the placement that {self.name} found violates a constraint: {reason}; loosen it, or use another placer, "
                "for example prior with --hardware, or the champion"
            )
        return placement


def is_without_costs(name: str | None) -> bool:
    """Whether a placer is a rule of thumb, a rival or a version of AutoShard: without the ways to shard that others have."""
    from dreamshard.names import VersionReference

    return name is not None and (name in _without_costs() or VersionReference.of(name).algorithm == "autoshard")


def choose(
    store: "Store",
    name: str | None,
    task: "PlacementTask",
    spec: "AcceleratorSpec | None",
    called: str = "",
    *,
    note: Callable[[str], None],
) -> Choice:
    """The placer called `name`, or the best one for the hardware: a version, or the preset itself.

    Args:
        store: with the registry.
        name: None for the champion, or for the best on `spec`.
        task: to be placed.
        spec: hardware that the plan is for; None where that is not said.
        called: how the user calls it.
        note: gets sentences for people.

    Raises:
        ValueError: there is no such placer; the message lists the existing ones.
    """
    if name == PRIOR and spec is None:
        raise ValueError(
            "the prior placer places by the figures of some hardware; add for example --hardware h100, or a file"
        )
    if spec is None and name in _without_costs():
        return _with_champion(store, name, note)
    if spec is None:
        return _version(store, name or "champion")
    if name == PRIOR:
        return _prior(spec, task, "")
    if name is None:
        return for_hardware(store, task, spec, called)
    from dreamshard.search import DreamShardPlacer

    if name not in _without_costs():
        return _version(store, name)
    best = for_hardware(store, task, spec, called)
    learnt = best.predictor if isinstance(best.predictor, DreamShardPlacer) else None
    return Choice(
        _rule_or_rival(name, learnt, note, spec),
        name,
        best.predictor,
        best.costs_of,
        f"costs by {best.name}: {best.why}",
        best.name,
        caveat=best.caveat,
    )


def for_hardware(store: "Store", task: "PlacementTask", spec: "AcceleratorSpec", called: str) -> Choice:
    """The best placer for some hardware that there is without measuring."""
    found = None
    if store.settings.has_registry:
        from flows.decisions.versions_by_hardware import find_version

        found = find_version(store, spec, task)
    if found is not None:
        from dreamshard.names import in_words
        from storage.mlflow_store import registry

        placer = registry.load_predictor(found.version, store.settings)
        why = f"{in_words(found.version)}{found.alias_note} places: its costs are of {found.measured_on}"
        name = in_words(found.version)
        return Choice(placer, name, placer, found.measured_on, why, version=found.version, caveat=found.caveat)
    return _prior(
        spec,
        task,
        f"no version was trained on {called}, so the prior placer places, by published figures alone; to learn from "
        f"measurements, train with `dreamshard run --source TABLES --devices {task.num_devices}` on the machine (minutes), "
        f"or with `--testbed simulated:{called}` without it",
    )


def _prior(spec: "AcceleratorSpec", task: "PlacementTask", why: str) -> Choice:
    from dreamshard.search import RooflinePlacer

    placer = RooflinePlacer(spec)
    return Choice(placer, PRIOR, placer, placer.measured_on(task), why)


def _without_costs() -> list[str]:
    """Rules of thumb and rivals: placers that need another one's prediction of costs, if any."""
    from dreamshard.rivals import RIVALS
    from dreamshard.search import PARTS
    from dreamshard.search.baselines import baselines

    return [*baselines(), *RIVALS, *PARTS]


def _rule_or_rival(
    name: str,
    learnt: "DreamShardPlacer | None",
    note: Callable[[str], None],
    spec: "AcceleratorSpec | None",
) -> "Placer":
    """The placer of `_without_costs`.

    Args:
        learnt: predicts for those that place by costs; None where there is no such placer.
        spec: hardware that TorchRec's planner assumes.

    Raises:
        ValueError: it places by learned costs and there are none, or it would have to measure some.
    """
    from dreamshard.rivals import OF_TORCHREC, rival
    from dreamshard.search import PARTS, part_of
    from dreamshard.search.baselines import baselines

    rules = baselines()
    if name in rules:
        return rules[name]
    if name in PARTS:
        if learnt is None:
            raise ValueError(
                f"{name} places by a trained cost network and there is none; train one with `dreamshard run`, or give "
                "a rule of thumb, which needs none"
            )
        return part_of(name, learnt)
    if name in OF_TORCHREC and spec is None:
        note(f"{name}: assumes TorchRec's default bandwidths; say --hardware for those of the devices")
    return rival(name, learnt, spec=spec)


def _with_champion(store: "Store", name: str, note: Callable[[str], None]) -> Choice:
    """A rule of thumb or rival, its costs predicted by the champion if there is one."""
    from dreamshard.search.baselines import baselines

    try:
        champion = _champion(store)
    except ValueError as error:
        if name not in baselines():
            raise
        note(f"no cost is predicted: the champion cannot be loaded: {error}")
        champion = None
    if champion is None:
        rival = _rule_or_rival(name, None, note, None)
        return Choice(rival, name, None, None, predicted_by="champion")
    from dreamshard.hardware.accelerator import preset_of
    from storage.mlflow_store import registry

    origin, version = _origin(store, champion, "champion"), registry.champion(store.settings)
    spec = preset_of(origin.hardware) if origin else None
    rival = _rule_or_rival(name, champion, note, spec)
    by = "champion"
    return Choice(
        rival, name, champion, origin, predicted_by=by, version=version, caveat=_caveat(store, by, "champion")
    )


def _version(store: "Store", name: str) -> Choice:
    """A version by reference."""
    from dreamshard.names import ALIASES, WRITTEN, VersionReference
    from dreamshard.search import DreamShardPlacer
    from storage.mlflow_store import registry

    rules, reference = _without_costs(), VersionReference.of(name)
    if not reference.is_valid:
        others = sorted([*rules, PRIOR])
        alike = get_close_matches(name, [*others, *ALIASES], n=1)
        meant = f"did you mean {alike[0]!r}? Or " if alike else ""
        raise ValueError(
            f"there is no placer {name!r}, so nothing can place the tables; {meant}give a version ({WRITTEN}), or one of "
            f"{others}"
        )
    try:
        placer = registry.load_placer(str(reference), store.settings)
    except ValueError as error:
        raise ValueError(
            f"{error}; to place without a version, give --hardware (for example h100), or --placer with a rule of thumb, "
            "e.g. lookup_greedy"
        ) from error
    caveat = _caveat(store, reference.in_words, str(reference))
    if not isinstance(placer, DreamShardPlacer):
        champion = _champion(store)
        origin = _origin(store, champion, "champion") if champion else None
        by = "champion" if champion else None
        why = f"{reference.in_words} predicts no cost of a step; {by} does" if by else ""
        return Choice(placer, reference.in_words, champion, origin, why, by, caveat=caveat)
    return Choice(placer, reference.in_words, placer, _origin(store, placer, str(reference)), caveat=caveat)


def _caveat(store: "Store", called: str, name: str) -> str:
    """Why a version is provisional, for people; empty if it is not."""
    from storage.mlflow_store import registry

    note = registry.provisional_note(registry.version_tags(store.settings, name))
    return f"{called} is {note}" if note else ""


def _origin(store: "Store", placer: "DreamShardPlacer", name: str) -> "MeasuredOn | None":
    """What a version was measured on, from its files, else from its tags."""
    from storage.mlflow_store import registry
    from storage.run_records.lineage import measured_on

    return placer.cost_network.measured_on or measured_on(registry.version_tags(store.settings, name))


def _champion(store: "Store") -> "DreamShardPlacer | None":
    """The champion, or None before the first.

    Raises:
        ValueError: its files are gone or damaged.
    """
    if not store.settings.has_registry:
        return None
    from storage.mlflow_store import registry

    return None if registry.champion(store.settings) is None else registry.load_predictor("champion", store.settings)
