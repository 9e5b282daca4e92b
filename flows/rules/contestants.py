"""Which placers take part in an evaluation, and under which names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dreamshard.hardware.accelerator import AcceleratorSpec
from dreamshard.placer import NoPlacementError, Placer
from dreamshard.plan import CurrentPlan, Plan
from dreamshard.rivals import OF_TORCHREC, ON_NETWORK, RIVALS, installed_rivals, rival
from dreamshard.search import PARTS, DreamShardPlacer, part_of
from dreamshard.search.baselines import baselines
from dreamshard.tasks import PlacementTask
from dreamshard.training import TrainedPlacer
from storage.mlflow_store import registry
from storage.mlflow_store.registry import Version
from storage.run_records.report_store import IN_USE
from storage.store import Store
from storage.version_names import WRITTEN, names_version

MOST_IN_COLUMNS = 150
"""Tables of a task up to which TorchRec's planner also plans columns: 160 on 8 devices take it 10 s, 200 take it 17 s;
more devices hardly matter."""

_BY_COSTS = (*PARTS, *ON_NETWORK)


@dataclass(frozen=True, kw_only=True)
class Contestants:
    """Placers that are measured on the same tasks.

    Attributes:
        placers: by name, in the order in which they are measured.
        model_placers: those that place only the model of a fixed model's tasks, not its variants.
        predictors: placers whose predictions are reported, by name; the first also predicts for all other placers. Empty
            if none predicts what steps cost, as AutoShard does not.
        versions: each registered version, by name.
        candidate: name of the placer of the training that is evaluated; None in a comparison of versions.
        notes: sentences about placers that were left out, and about their assumptions.
    """

    placers: Mapping[str, Placer]
    predictors: Mapping[str, DreamShardPlacer]
    versions: Mapping[str, Version] = field(default_factory=dict)
    model_placers: Mapping[str, Placer] = field(default_factory=dict)
    candidate: str | None = None
    notes: tuple[str, ...] = ()


def champion_name(version: Version) -> str:
    """The name of the champion in the evaluation of a training."""
    return f"champion {version.number}"


def of_training(
    candidate: TrainedPlacer, champion: TrainedPlacer | None, version: Version | None, seed: int, *, rivals: bool
) -> Contestants:
    """Rules of thumb, greedy search on the cost network, published rivals, the candidate, and the champion in use.

    Args:
        champion: placer of the champion; None if there is none.
        version: the champion.
        rivals: add the published rivals; those that use predicted costs of steps are left out if the candidate predicts
            none.
    """
    versions = {} if version is None else {champion_name(version): version}
    models = {candidate.name: candidate} | {name: champion for name in versions if champion is not None}
    predictors = _predictors({candidate.name: candidate})
    names = [*baselines(), *(PARTS[:1] if predictors else ()), *(installed_rivals() if rivals else ()), *models]
    contestants = Contestants(placers={}, predictors=predictors, versions=versions, candidate=candidate.name)
    return _with_placers(contestants, names, models, seed, may_leave_out=True)


def of_versions(
    store: Store, names: Mapping[str, Version | None], seed: int, *, may_leave_out: bool = False
) -> Contestants:
    """The placers that `resolve` names.

    Args:
        names: version of each placer; None if it is not a registered version.
        may_leave_out: leave out rivals that cannot take part, because all were requested and none by name.

    Raises:
        ValueError: the files of a version cannot be read, torchrec is not installed, or a placer places by predicted costs
            of steps and no version predicts them.
    """
    versions = {name: version for name, version in names.items() if version is not None}
    models = {name: registry.load_placer(version.uri, store.settings) for name, version in versions.items()}
    contestants = Contestants(placers={}, predictors=_predictors(models), versions=versions)
    return _with_placers(contestants, list(names), models, seed, may_leave_out=may_leave_out)


def of_fixed_model(
    contestants: Contestants, tasks: Sequence[PlacementTask], current: Plan | None, reference: str | None
) -> Contestants:
    """The contestants for a fixed model, with the plan in use.

    Rules of thumb and rivals that find no room for a task are left out, for memory may be tight; a note says so.

    Args:
        tasks: held-out ones; the first is the model.
        current: the plan in use; None if it is not known.
        reference: placer that cannot be left out; None for none.

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
    notes = [f"{', '.join(sorted(left_out))} found no room for every task and were left out"] if left_out else []
    return replace(contestants, placers=kept | last, model_placers=in_use, notes=(*contestants.notes, *notes))


def resolve(store: Store, names: Sequence[str], *, with_rivals: bool) -> dict[str, Version | None]:
    """Name each placer to compare, with its version if it is a registered one.

    Args:
        names: versions, aliases, rules of thumb, parts of a placer (`search.PARTS`), published rivals; two names of one
            version count once.
        with_rivals: add all published rivals.

    Raises:
        ValueError: there is no such version or placer, no version is among them, or there are fewer than two.
    """
    others = [*baselines(), *PARTS, *RIVALS]
    resolved: dict[str, Version | None] = {}
    versions = {name: registry.find(store.settings, name) for name in names if names_version(name)}
    is_one_model = len({version.model for version in versions.values()}) == 1
    for name in [*names, *(installed_rivals() if with_rivals else ())]:
        if name in versions:
            version = versions[name]
            resolved[f"version {version.number}" if is_one_model else str(version)] = version
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


def with_torchrec_planner(
    contestants: Contestants, tasks: Sequence[PlacementTask], spec: AcceleratorSpec | None
) -> Contestants:
    """The contestants, in which TorchRec's planner assumes the testbed's bandwidths; it meets every candidate.

    It is added to a candidate's evaluation if torchrec is installed, unless it finds no placement for a task: of whole
    tables, and if the candidate may split tables also of columns. Planning columns takes seconds, so with large tasks
    they are left out, and a note says so.

    Args:
        spec: bandwidths and hosts that the planner assumes; None for its defaults.
    """
    (whole, columns), notes = OF_TORCHREC, [*contestants.notes]
    named = [name for name in OF_TORCHREC if name in contestants.placers]
    added: dict[str, Placer] = {}
    if contestants.candidate is not None and whole in installed_rivals():
        candidate = contestants.placers[contestants.candidate]
        may_split = isinstance(candidate, DreamShardPlacer) and candidate.columns and candidate.inference == "search"
        most = max(len(task.tables) for task in tasks)
        wanted = [whole, *([columns] if may_split and most <= MOST_IN_COLUMNS else [])]
        added = {name: rival(name, None, spec=spec) for name in wanted if name not in named}
        if may_split and most > MOST_IN_COLUMNS and columns not in named:
            notes.append(
                f"{columns} was left out: a task has {most} tables, and beyond {MOST_IN_COLUMNS} TorchRec's planner takes "
                "more than about 10 seconds to plan columns for one; to measure it all the same, name it in "
                "`dreamshard compare`"
            )
    unfit = without_room(added, tasks)
    planners = {name: rival(name, None, spec=spec) for name in OF_TORCHREC if name in {*named, *added} - unfit}
    if planners and spec is None:
        notes.append("TorchRec's planner assumed its default bandwidths, for those of this hardware are not known")
    last = {*contestants.predictors, contestants.candidate}
    models = {name: placer for name, placer in contestants.placers.items() if name in last}
    others = {name: placer for name, placer in contestants.placers.items() if name not in models}
    return replace(contestants, placers={**others, **planners, **models}, notes=tuple(notes))


def without_room(placers: Mapping[str, Placer], tasks: Sequence[PlacementTask]) -> set[str]:
    """Names of the placers that find no placement of some task.

    If TorchRec's planner finds room for whole tables it also does in columns, so it is not asked to plan these as well.
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
    seed: int,
    *,
    may_leave_out: bool,
) -> Contestants:
    """With the placers of these names, in this order."""
    known: dict[str, Placer] = {**baselines(seed), **models}
    base, notes = next(iter(contestants.predictors.values()), None), contestants.notes
    by_costs = [] if base else [name for name in names if name in _BY_COSTS]
    if base is not None:
        known |= {name: part_of(name, base) for name in PARTS}
    elif by_costs:
        reason = "a network that predicts what steps cost, but AutoShard predicts compute only"
        if not may_leave_out:
            raise ValueError(
                f"{', '.join(by_costs)} would use {reason}, so they cannot take part; name a version of another algorithm "
                "as well, e.g. champion, or leave them out"
            )
        notes = (*notes, f"{' and '.join(by_costs)} were left out: they use {reason}")
    placers = {name: known.get(name) or rival(name, base) for name in names if name not in by_costs}
    return replace(contestants, placers=placers, notes=notes)
