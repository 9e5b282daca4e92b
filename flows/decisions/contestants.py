"""Which placers take part in an evaluation, and under which names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dreamshard.placer import NoPlacementError, Placer
from dreamshard.plan import CurrentPlan, Plan
from dreamshard.rivals import MEASURING, OF_TORCHREC, RIVALS, installed_rivals
from dreamshard.search import PARTS, DreamShardPlacer, part_of
from dreamshard.search.baselines import baselines
from dreamshard.tasks import PlacementTask
from dreamshard.training import TrainedPlacer
from flows.decisions.rivals import RivalInputs
from storage.mlflow_store import registry
from storage.mlflow_store.version_names import WRITTEN, VersionReference, in_words, number_of
from storage.run_records.report_store import IN_USE
from storage.store import Store


@dataclass(frozen=True, kw_only=True)
class Contestants:
    """Placers that are measured on the same tasks.

    Attributes:
        placers: by name, in the order in which they are measured.
        model_placers: those that place only the model of a fixed model's tasks, not its variants.
        predictors: placers whose predictions are reported, by name; the first also predicts for all other placers. Empty
            where none predicts what steps cost, as AutoShard does not.
        versions: reference to each registered version, by name.
        candidate: name of the placer of the training that is evaluated; None in a comparison of versions.
        learnt_from: measured placements that a placer has learnt from, by name, where any and known.
        notes: sentences about placers that were left out.
        has_default_bandwidths: whether TorchRec's planner takes part and nothing is known about the testbed's bandwidths.
    """

    placers: Mapping[str, Placer]
    predictors: Mapping[str, DreamShardPlacer]
    versions: Mapping[str, str]
    model_placers: Mapping[str, Placer] = field(default_factory=dict)
    candidate: str | None = None
    learnt_from: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    has_default_bandwidths: bool = False


def champion_name(version: str) -> str:
    """The name of the champion in the evaluation of a training."""
    return f"champion {number_of(version)}"


def of_training(
    candidate: TrainedPlacer,
    champion: TrainedPlacer | None,
    rival: str | None,
    inputs: RivalInputs,
    seed: int,
) -> Contestants:
    """Rules of thumb, greedy search on the cost network, published rivals, the candidate, and the champion in use.

    Args:
        champion: placer of the champion; None if there is none.
        rival: version of the champion.
        inputs: of the published rivals, with the candidate's measurements; without training tasks, no rival takes part.
            Those that use predicted costs of steps are left out if the candidate predicts none.
    """
    versions = {} if rival is None else {champion_name(rival): rival}
    models = {candidate.name: candidate} | ({champion_name(rival): champion} if rival and champion else {})
    predictors = _predictors({candidate.name: candidate})
    by_costs = PARTS[:1] if predictors else ()
    names = [*baselines(), *by_costs, *(installed_rivals() if inputs.train_tasks else ()), *models]
    contestants = Contestants(placers={}, predictors=predictors, versions=versions, candidate=candidate.name)
    return _with_placers(contestants, names, models, inputs, seed)


def of_versions(store: Store, names: Mapping[str, str | None], inputs: RivalInputs, seed: int) -> Contestants:
    """The placers that `resolve` names.

    Args:
        names: version of each placer; None where it is not a registered version.
        inputs: of the rivals, with the measurements of the first version.

    Raises:
        ValueError: the files of a version cannot be read, a rival has nothing to learn from, torchrec is not installed, or a
            placer places by predicted costs of steps and no version predicts them.
    """
    versions = {name: version for name, version in names.items() if version is not None}
    models = {name: registry.load_placer(version, store.settings) for name, version in versions.items()}
    contestants = Contestants(placers={}, predictors=_predictors(models), versions=versions)
    return _with_placers(contestants, list(names), models, inputs, seed)


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
    required = contestants.predictors.keys() | contestants.versions.keys() | {reference, contestants.candidate}
    left_out = without_room({name: placers[name] for name in placers.keys() - required}, tasks)
    kept = {name: placer for name, placer in placers.items() if name not in left_out}
    last = {name: kept.pop(name) for name in [*kept] if name in required}
    in_use: dict[str, Placer] = {} if current is None else {IN_USE: CurrentPlan(current)}
    for placer in in_use.values():
        placer.place(tasks[0])
    sentence = f"{', '.join(sorted(left_out))} found no room for every task and were left out" if left_out else ""
    return replace(contestants, placers=kept | last, model_placers=in_use), sentence


def champion_placer(store: Store, rival: str | None) -> TrainedPlacer | None:
    """The champion in use; None if there is none.

    Raises:
        ValueError: its files cannot be read, which proves nothing about the champion.
    """
    return None if rival is None else registry.load_placer(rival, store.settings)


def resolve(store: Store, names: Sequence[str], *, with_rivals: bool) -> dict[str, str | None]:
    """Name each placer to compare, with its version where it is a registered one.

    Args:
        names: versions, aliases, rules of thumb, parts of a placer (`search.PARTS`), published rivals; two names of one
            version count once.
        with_rivals: add all published rivals.

    Raises:
        ValueError: there is no such version or placer, no version is among them, or there are fewer than two.
    """
    others = [*baselines(), *PARTS, *RIVALS]
    resolved: dict[str, str | None] = {}
    versions = {name: registry.resolve(store.settings, name) for name in names if VersionReference.of(name).is_valid}
    is_one_model = len({VersionReference.of(version).model for version in versions.values()}) == 1
    for name in [*names, *(installed_rivals() if with_rivals else ())]:
        if name in versions:
            version = versions[name]
            resolved[f"version {number_of(version)}" if is_one_model else in_words(version)] = version
        elif name in others:
            resolved[name] = None
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


def without_room(placers: Mapping[str, Placer], tasks: Sequence[PlacementTask]) -> set[str]:
    """Names of the placers that find no placement of some task.

    Where TorchRec's planner finds room for whole tables it also does in columns, so it is not asked to plan these as well.
    """
    whole, columns = OF_TORCHREC
    found = {name for name, placer in placers.items() if name != columns and not _has_room(placer, tasks)}
    if columns in placers and whole not in placers.keys() - found and not _has_room(placers[columns], tasks):
        found.add(columns)
    return found


def _has_room(placer: Placer, tasks: Sequence[PlacementTask]) -> bool:
    try:
        for task in tasks:
            placer.place(task)
    except NoPlacementError:
        return False
    return True


def _predictors(models: Mapping[str, TrainedPlacer]) -> dict[str, DreamShardPlacer]:
    """Those that predict what steps cost; AutoShard predicts compute only."""
    return {name: model for name, model in models.items() if isinstance(model, DreamShardPlacer)}


def _with_placers(
    contestants: Contestants,
    names: Sequence[str],
    models: Mapping[str, TrainedPlacer],
    inputs: RivalInputs,
    seed: int,
) -> Contestants:
    """With the placers of these names, in this order.

    Args:
        models: trained placers by name; the measurements of `inputs` are of the first.
    """
    known: dict[str, Placer] = {**baselines(seed), **models}
    base = next(iter(contestants.predictors.values()), None)
    if base is not None:
        known |= {name: part_of(name, base) for name in PARTS}
    names, notes = inputs.taking_part(names, predicts=base is not None)
    first = next(iter(models))
    learnt_from = {first: inputs.measured} if inputs.measured else {}
    placers: dict[str, Placer] = {}
    for name in names:
        placers[name] = known.get(name) or inputs.rival(name, base, (base or models[first]).normaliser, seed)
        if name == MEASURING:
            learnt_from[name] = inputs.measurements
    return replace(contestants, placers=placers, learnt_from=learnt_from, notes=notes)
