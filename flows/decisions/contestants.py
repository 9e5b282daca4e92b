"""Which placers take part in an evaluation, and under which names."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dreamshard.baselines import baselines
from dreamshard.peers import PEERS, installed_peers, peer, peers
from dreamshard.peers.torchrec_planner import TorchRecPlanner
from dreamshard.placer import NoPlacementError, Placer
from dreamshard.plan import CurrentPlan, Plan
from dreamshard.search import DreamShardPlacer, GreedyCostPlacer
from dreamshard.tasks import PlacementTask
from dreamshard.testbeds.accelerators.specs import AcceleratorSpec
from dreamshard.version_references import WRITTEN, VersionReference
from flows.runtime.retries import passing
from storage.mlflow_store import registry
from storage.store import Store

IN_USE = "current plan"
"""The name of the plan in use in a report."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Contestants:
    """Placers that are measured on the same tasks.

    Attributes:
        placers: by name, in the order in which they are measured.
        model_placers: those that place only the model of a fixed model's tasks, not its variants.
        predictors: placers whose predictions are reported, by name; the first also predicts for all other placers.
        versions: reference to each registered version, by name.
        candidate: name of the placer of the training that is evaluated; None in a comparison of versions.
    """

    placers: Mapping[str, Placer]
    predictors: Mapping[str, DreamShardPlacer]
    versions: Mapping[str, str]
    model_placers: Mapping[str, Placer] = field(default_factory=dict)
    candidate: str | None = None


def champion_name(version: str) -> str:
    """The name of the champion in the evaluation of a training."""
    return f"champion {version}"


def of_training(
    candidate: DreamShardPlacer,
    champion: DreamShardPlacer | None,
    rival: str | None,
    train_tasks: Sequence[PlacementTask],
    seed: int,
) -> Contestants:
    """Rules of thumb, greedy search on the cost network, published rivals, the candidate, and the champion in use.

    Args:
        champion: placer of the champion; None where there is none, or where it cannot be used.
        rival: version of the champion.
        train_tasks: training tasks of the published rivals; without any, no rival takes part.
    """
    versions = {} if rival is None else {champion_name(rival): rival}
    models = {candidate.name: candidate} | ({champion_name(rival): champion} if rival and champion else {})
    names = [*baselines(), "cost_greedy", *(installed_peers() if train_tasks else ()), *models]
    placers = _placers(names, models, train_tasks, seed)
    return Contestants(
        placers=placers, predictors={candidate.name: candidate}, versions=versions, candidate=candidate.name
    )


def of_versions(
    store: Store, names: Mapping[str, str | None], train_tasks: Sequence[PlacementTask], seed: int
) -> Contestants:
    """The placers that `resolve` names.

    Args:
        names: version of each placer; None where it is not a registered version.
        train_tasks: training tasks of the rivals that learn; without any, they train for each task that they place.

    Raises:
        ValueError: the files of a version cannot be read, or torchrec is not installed.
    """
    versions = {name: version for name, version in names.items() if version is not None}
    models = {name: registry.load_placer(version, store.settings) for name, version in versions.items()}
    return Contestants(placers=_placers(names, models, train_tasks, seed), predictors=models, versions=versions)


def with_torchrec_planner(
    contestants: Contestants, tasks: Sequence[PlacementTask], spec: AcceleratorSpec | None
) -> Contestants:
    """The contestants; with a candidate also TorchRec's planner, wherever torchrec is installed.

    It is left out if it finds no placement for a task, unless it was asked for by name.

    Args:
        spec: bandwidths and hosts that the planner assumes; None for its defaults.
    """
    name = "torchrec_planner"
    if name not in contestants.placers and (contestants.candidate is None or name not in installed_peers()):
        return contestants
    planner = TorchRecPlanner() if spec is None else TorchRecPlanner.on(spec)
    if name not in contestants.placers and not _has_room(planner, tasks):
        return contestants
    models = {each: placer for each, placer in contestants.placers.items() if each in contestants.predictors}
    others = {each: placer for each, placer in contestants.placers.items() if each not in models}
    return replace(contestants, placers={**others, name: planner, **models})


def of_fixed_model(
    contestants: Contestants,
    tasks: Sequence[PlacementTask],
    current: Plan | None,
    reference: str | None,
) -> tuple[Contestants, str]:
    """The contestants for a fixed model, with the plan in use.

    Rules of thumb and rivals that find no room for a task are left out, for memory may be tight.

    Args:
        tasks: held-out ones; the first is the model.
        current: the plan in use; None if it is not known.
        reference: placer that cannot be left out; None for none.

    Returns:
        The contestants, and a sentence about those left out; empty where there are none.

    Raises:
        ValueError: the plan in use is not one of this model.
    """
    placers = dict(contestants.placers)
    required = contestants.predictors.keys() | contestants.versions.keys() | {reference}
    left_out = [name for name in placers.keys() - required if not _has_room(placers[name], tasks)]
    kept = {name: placer for name, placer in placers.items() if name not in left_out}
    last = {name: kept.pop(name) for name in [*kept] if name in required}
    in_use: dict[str, Placer] = {} if current is None else {IN_USE: CurrentPlan(current)}
    for placer in in_use.values():
        placer.place(tasks[0])
    sentence = f"{', '.join(sorted(left_out))} found no room for every task and were left out" if left_out else ""
    return replace(contestants, placers=kept | last, model_placers=in_use), sentence


def champion_placer(store: Store, rival: str | None) -> tuple[DreamShardPlacer | None, str]:
    """The champion in use, or None and the reason: a champion that is lost or too old must not stop all retraining.

    Raises:
        ValueError: the registry or its store does not answer at present, which proves nothing about the champion.
    """
    if rival is None:
        return None, ""
    try:
        return registry.load_placer(rival, store.settings), ""
    except ValueError as error:
        if passing(error):
            raise
        logger.warning("champion version %s cannot be used, so it counts as beaten: %s", rival, error)
        return None, str(error)


def resolve(store: Store, names: Sequence[str], *, with_peers: bool) -> dict[str, str | None]:
    """Name each placer to compare, with its version where it is a registered one.

    Args:
        names: versions, aliases, rules of thumb, cost_greedy, published rivals; two names of one version count once.
        with_peers: add all published rivals.

    Raises:
        ValueError: there is no such version or placer, no version is among them, or there are fewer than two.
    """
    others = [*baselines(), "cost_greedy", *PEERS]
    resolved: dict[str, str | None] = {}
    for name in [*names, *(installed_peers() if with_peers else ())]:
        if name in others:
            resolved[name] = None
        elif VersionReference.of(name).is_valid:
            number = registry.resolve(store.settings, name)
            resolved[f"version {number}"] = number
        else:
            raise ValueError(
                f"there is no placer {name!r}, so it cannot be compared; give a version ({WRITTEN}), or one of "
                f"{sorted(others)}"
            )
    if not any(resolved.values()):
        raise ValueError(
            "no version is among the placers to compare, but the cost network of a version has to predict the costs of "
            "the others; name at least one version, e.g. champion (`dreamshard models` lists them)"
        )
    if len(resolved) < 2:
        raise ValueError(
            f"{next(iter(resolved))} alone cannot be compared; name another version, or e.g. lookup_greedy"
        )
    return resolved


def identities(store: Store, names: Mapping[str, str | None]) -> list[str]:
    """Identify the placers across registries: version 1 of another registry is another placer."""
    return [name if version is None else registry.model_of(store.settings, version) for name, version in names.items()]


def _has_room(placer: Placer, tasks: Sequence[PlacementTask]) -> bool:
    try:
        for task in tasks:
            placer.place(task)
    except NoPlacementError:
        return False
    return True


def _placers(
    names: Iterable[str], models: Mapping[str, DreamShardPlacer], train_tasks: Sequence[PlacementTask], seed: int
) -> dict[str, Placer]:
    base, rules = next(iter(models.values())), baselines(seed)
    learned = peers(base, train_tasks, seed) if train_tasks else {}
    greedy = GreedyCostPlacer(base.cost_network, base.normaliser)
    known: dict[str, Placer] = {**rules, "cost_greedy": greedy, **learned, **models}
    return {name: known[name] if name in known else peer(name, base, seed) for name in names}
