"""Which placers take part in an evaluation and under which names, and tables that none of them was trained on."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dreamshard.files import gib
from dreamshard.hardware.accelerator import AcceleratorSpec
from dreamshard.planning import PLACERS, placer_called
from dreamshard.recipes import Recipe
from dreamshard.rivals import RIVALS, installed_rivals
from dreamshard.search import MOVES_PER_MS, PARTS, DreamShardPlacer
from dreamshard.search.packing import baselines
from dreamshard.tables import Placement, Tables
from dreamshard.tasks import PlacementTask, Placer
from dreamshard.training import TrainedPlacer
from storage.mlflow_store import registry
from storage.mlflow_store.registry import Version
from storage.run_records.trainings import WRITTEN, Topology, names_version
from storage.store import Store

MOST_IN_COLUMNS = 150
"""Tables of a task up to which TorchRec's planner also plans columns: 160 on 8 devices take it 10 s, 200 take it 17 s;
more devices hardly matter."""

_WORTH_SEARCHING = 0.001
_FEWEST_TABLES = 2  # of a task that has a choice of devices

Entrant = TrainedPlacer | Version | None
"""The candidate of a training, a registered version, or a placer that its name alone says."""


@dataclass(frozen=True)
class Stalled:
    """A version whose search starts again with twice the moves until that saves less than 0.1 %.

    Otherwise the luck of one search decides between versions that are as good.
    """

    placer: DreamShardPlacer

    @property
    def name(self) -> str:
        """The version's."""
        return self.placer.name

    def place(self, task: PlacementTask, budget_ms: float | None = None) -> Placement:
        """The cheapest placement found, as its own network predicts."""
        moves, best, best_ms = self.placer.moves(task, budget_ms), None, math.inf
        while True:
            placement = self.placer.place(task, moves / MOVES_PER_MS)
            cost_ms = float(self.placer.predict(task, placement).overall_ms())
            if best is not None and cost_ms >= (1 - _WORTH_SEARCHING) * best_ms:
                return placement if cost_ms < best_ms else best
            moves, best, best_ms = 2 * moves, placement, cost_ms


@dataclass(frozen=True, kw_only=True)
class Contestants:
    """Placers that are measured on the same tasks.

    Attributes:
        placers: by name.
        predictors: placers whose predictions are reported, by name; the first also predicts for all other placers. Empty
            if none predicts what steps cost, as AutoShard does not.
        versions: each registered version, by name.
        candidate: name of the placer of the training that is evaluated; None in a comparison of versions.
        notes: sentences about placers that were left out, and about their assumptions.
    """

    placers: Mapping[str, Placer]
    predictors: Mapping[str, DreamShardPlacer]
    versions: Mapping[str, Version]
    candidate: str | None
    notes: tuple[str, ...]


def champion_name(version: Version) -> str:
    """The name of the champion in the evaluation of a training."""
    return f"champion {version.number}"


def of_training(
    store: Store,
    candidate: TrainedPlacer,
    champion: Version | None,
    tasks: Sequence[PlacementTask],
    spec: AcceleratorSpec | None,
    seed: int,
) -> Contestants:
    """Heuristics, greedy search on the cost network, TorchRec's planner, the candidate, and the champion in use.

    TorchRec's planner takes part if torchrec is installed: of whole tables, and if the candidate may split tables also of
    columns. Planning columns takes seconds, so with large tasks they are left out, and a note says so.

    Args:
        spec: bandwidths and hosts that TorchRec's planner assumes; None for its defaults.
    """
    (whole, columns), names, notes, may_split = RIVALS, [*baselines()], list[str](), False
    if isinstance(candidate, DreamShardPlacer):
        names.append(PARTS[0])
        may_split = candidate.columns and candidate.inference == "search"
    if whole in installed_rivals():
        most = max(len(task.tables) for task in tasks)
        names.append(whole)
        if may_split and most <= MOST_IN_COLUMNS:
            names.append(columns)
        elif may_split:
            notes.append(
                f"{columns} was left out: a task has {most} tables, and with more than {MOST_IN_COLUMNS} TorchRec's planner "
                "takes more than about 10 seconds to plan columns; to measure it anyway, give it to "
                "`dreamshard compare`"
            )
    entrants: dict[str, Entrant] = {**dict.fromkeys(names), candidate.name: candidate}
    if champion is not None:
        entrants[champion_name(champion)] = champion
    return of_entrants(store, entrants, spec, seed, notes)


def resolve(store: Store, names: Sequence[str], *, model: str = "") -> dict[str, Version | None]:
    """Name each placer to compare, with its version if it is a registered one.

    Args:
        names: versions, aliases, or `PLACERS`; two names of one version count once.
        model: that aliases and numbers alone are of; empty for the only one.

    Raises:
        ValueError: there is no such version or placer, no version is among them, or there are fewer than two.
    """
    resolved: dict[str, Version | None] = {}
    versions = {name: registry.find(store, name, model) for name in names if names_version(name)}
    is_one_model = len({version.registered_model for version in versions.values()}) == 1
    for name in names:
        if name in versions:
            version = versions[name]
            resolved[f"version {version.number}" if is_one_model else str(version)] = version
        elif name in PLACERS:
            resolved[name] = None
        else:
            raise ValueError(
                f"there is no placer {name!r}, so it cannot be compared; give a version ({WRITTEN}), or one of "
                f"{sorted(PLACERS)}"
            )
    if not any(resolved.values()):
        raise ValueError(
            "none of the placers is a version, but a version's cost network has to predict the others' costs; add one, e.g. "
            "champion (`dreamshard models` lists them)"
        )
    if len(resolved) < 2:
        raise ValueError(
            f"{next(iter(resolved))} alone cannot be compared; name another version, or e.g. lookup_greedy"
        )
    return resolved


def of_entrants(
    store: Store,
    entrants: Mapping[str, Entrant],
    spec: AcceleratorSpec | None,
    seed: int,
    notes: Sequence[str] = (),
) -> Contestants:
    """The placers of these names.

    Args:
        spec: as for `of_training`.
        seed: of random placements.
        notes: about placers that were left out already.

    Raises:
        ValueError: the files of a version cannot be read, torchrec is not installed, or a placer places by predicted costs
            of steps and no version predicts them.
    """
    versions = {name: entrant for name, entrant in entrants.items() if isinstance(entrant, Version)}
    candidate = {name: entrant for name, entrant in entrants.items() if entrant is not None and name not in versions}
    loaded = {name: registry.load_placer(version.uri, store) for name, version in versions.items()}
    models: dict[str, Any] = candidate | loaded
    predictors = {name: model for name, model in models.items() if isinstance(model, DreamShardPlacer)}
    base, notes = next(iter(predictors.values()), None), [*notes]
    if spec is None and not {*RIVALS}.isdisjoint(entrants):
        notes.append("TorchRec's planner assumed its default bandwidths, for those of this hardware are not known")
    known = models | {
        name: Stalled(placer)
        for name, placer in predictors.items()
        if placer.inference == "search" and placer.budget_ms is None
    }
    return Contestants(
        placers={name: known.get(name) or placer_called(name, base, spec, seed) for name in entrants},
        predictors=predictors,
        versions=versions,
        candidate=next(iter(candidate), None),
        notes=tuple(notes),
    )


def split_by_training(store: Store, dataset: str, versions: Sequence[Version]) -> tuple[Tables, Tables]:
    """Split a dataset into tables that any of the versions was trained on, and tables that are held out for all.

    Tables are compared by name: one that has grown since training is not new. Both parts keep the dataset's order.

    Raises:
        ValueError: the table split of a version is not in the lake.
    """
    pool = store.lake.read_dataset(dataset)
    names = {name for version in versions for name in store.lake.read_table_split(version.made_of.tasks).train}
    trained = torch.tensor([name in names for name in pool.names], dtype=torch.bool)
    return pool.select(trained.nonzero()[:, 0]), pool.select((~trained).nonzero()[:, 0])


def bias_caveat(store: Store, version: Version | None, tasks: Sequence[PlacementTask]) -> str:
    """A warning that tasks of a pool hold tables which `version` was trained on, or that this is unknown; else empty."""
    if version is None:
        return ""
    if not store.lake.has_table_split(version.made_of.tasks):
        return f"which tables {version} was trained on is not known here: its table split is not in this lake"
    names = {name for task in tasks for name in task.tables.names}
    seen = names & store.lake.read_table_split(version.made_of.tasks).train
    return (
        f"{version} was trained on {len(seen)} of the {len(names)} tables of these tasks, which favours it"
        if seen
        else ""
    )


def setting_of(store: Store, versions: Sequence[Version]) -> tuple[Recipe, str, str]:
    """Recipe and dataset of a comparison, and a sentence on them.

    A version of a fixed model makes all be compared on one model, since no table is held out for it.

    Raises:
        ValueError: too few tables are held out for all of the versions, or the tables are not in this lake.
    """
    first, newest = versions[0], max(versions, key=lambda version: (version.created, version.number))
    bench, recipe, dataset = first.made_of.testbed, first.made_of.recipe, newest.made_of.dataset
    testbed = bench.kind if bench.name == "auto" else bench.name  # as it was then
    tasks, fixed = recipe.tasks, next((version for version in versions if version.made_of.is_fixed), None)
    if fixed is not None:
        tasks, what = replace(tasks, mode="fixed"), f"one fixed model, since no table is held out for {fixed}"
    else:
        unseen = len(split_by_training(store, dataset, versions)[1])
        if unseen < _FEWEST_TABLES:
            raise ValueError(
                f"only {unseen} tables of dataset {dataset} are new to all of {', '.join(map(str, versions))}; compare fewer"
            )
        tasks = replace(tasks, mode="pool", tables_per_task=min(tasks.tables_per_task, unseen))
        what = f"tasks of {tasks.tables_per_task} tables that are held out for all"
    sentence = (
        f"compared as {first} was trained, on dataset {dataset}: {what}; {tasks.num_devices} devices of "
        f"{gib(tasks.memory_bytes)}, testbed {testbed}"
    )
    return replace(recipe, tasks=tasks, testbed=testbed), dataset, sentence


def other_hardware(versions: Sequence[Version], measured: Topology) -> str:
    """Says which versions' costs are of other hardware, or another number of devices, than is measured on; empty if none."""
    others = {str(version): topology for version in versions if (topology := version.made_of.topology) != measured}
    if not others:
        return ""
    of = " and ".join(f"{version} of {topology}" for version, topology in others.items())
    return f"measured on {measured}, but the predictions are those of {of}"
