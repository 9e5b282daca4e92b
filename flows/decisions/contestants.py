"""Which placers take part in an evaluation, and under which names."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dreamshard.baselines import baselines
from dreamshard.peers import PEERS, installed_peers, peer, peers
from dreamshard.placer import Placer
from dreamshard.search import DreamShardPlacer, GreedyCostPlacer
from dreamshard.tasks import PlacementTask
from flows.runtime.retries import passing
from storage.mlflow_store import registry
from storage.run_records.report_store import CANDIDATE
from storage.store import Store

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Contestants:
    """Placers that are measured on the same tasks.

    Attributes:
        placers: by name, in the order in which they are measured.
        predictors: placers whose predictions are reported, by name; the first also predicts for all other placers.
        versions: number of each registered version, by name.
    """

    placers: Mapping[str, Placer]
    predictors: Mapping[str, DreamShardPlacer]
    versions: Mapping[str, str]


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
    models = {CANDIDATE: candidate} | ({champion_name(rival): champion} if rival and champion else {})
    names = [*baselines(), "cost_greedy", *(installed_peers() if train_tasks else ()), *models]
    placers = _placers(names, models, train_tasks, seed)
    return Contestants(placers=placers, predictors={CANDIDATE: candidate}, versions=versions)


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
        elif name in registry.ALIASES or name.isdigit():
            number = registry.resolve(store.settings, name)
            resolved[f"version {number}"] = number
        else:
            raise ValueError(
                f"there is no placer {name!r}, so it cannot be compared; give {', '.join(registry.ALIASES)}, a version's "
                f"number, or one of {sorted(others)}"
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


def _placers(
    names: Iterable[str], models: Mapping[str, DreamShardPlacer], train_tasks: Sequence[PlacementTask], seed: int
) -> dict[str, Placer]:
    base, rules = next(iter(models.values())), baselines(seed)
    learned = peers(base, train_tasks, seed) if train_tasks else {}
    greedy = GreedyCostPlacer(base.cost_network, base.normaliser)
    known: dict[str, Placer] = {**rules, "cost_greedy": greedy, **learned, **models}
    return {name: known[name] if name in known else peer(name, base, seed) for name in names}
