"""The options of every deployed flow, which its form, the API, its command and direct calls share.

`form.py` makes Prefect flows of them, `cli/command_options.py` commands, and `configuration.py` a recipe, whose value
holds where an option is None. Fields of a second base class come first in the form.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

from dreamshard.names import VersionReference
from flows.forms import fields, place_fields, version_fields


@dataclass(frozen=True, kw_only=True)
class RecipeOptions:
    """The configuration that all other options override."""

    recipe: fields.RecipeName = "default"


@dataclass(frozen=True, kw_only=True)
class RunOptions(RecipeOptions):
    """What is drawn, and where costs come from."""

    seed: fields.Seed = 0
    testbed: fields.TestbedName = None


@dataclass(frozen=True, kw_only=True)
class RetrainingOptions(RunOptions):
    """A retraining: what `watch` asks for and `retrain` takes."""

    source: fields.Source = None
    batches: fields.Batches = None
    num_batches: fields.NumBatches = None
    num_devices: fields.NumDevices = None
    devices_per_host: fields.DevicesPerHost = None
    memory_gb: fields.MemoryGb = None
    reserve_gb: fields.ReserveGb = None
    tables_per_task: fields.TablesPerTask = None
    batch_size: fields.BatchSize = None
    mode: fields.LearntMode = None
    exchange_devices: fields.ExchangeDevices = None
    algorithm: fields.Algorithm = None

    def parameters(self) -> dict[str, Any]:
        """These options as parameters of a flow run, without those that a subclass adds."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(RetrainingOptions)}


@dataclass(frozen=True, kw_only=True)
class TaskOptions(RunOptions):
    """Tasks of tables that have been ingested."""

    dataset: fields.Dataset = None
    num_devices: fields.NumDevices = None
    devices_per_host: fields.DevicesPerHost = None
    memory_gb: fields.MemoryGb = None
    reserve_gb: fields.ReserveGb = None
    tables_per_task: fields.TablesPerTask = None
    mode: fields.LearntMode = None
    exchange_devices: fields.ExchangeDevices = None


@dataclass(frozen=True, kw_only=True)
class StageOptions(TaskOptions):
    """One stage of a training."""

    algorithm: fields.Algorithm = None


@dataclass(frozen=True, kw_only=True)
class RetrainOptions(RetrainingOptions):
    """The whole chain."""

    iterations: fields.Iterations = None
    placements_per_iteration: fields.PlacementsPerIteration = None
    full: fields.Full = False
    new_reference: fields.NewReference = False
    current: fields.CurrentPlan = None
    no_promote: fields.NoPromote = False


@dataclass(frozen=True, kw_only=True)
class WatchOptions(RetrainingOptions):
    """A look at a source of tables, and what counts as a change."""

    pooling_drift: fields.PoolingDrift = 0.1
    reuse_drift: fields.ReuseDrift = 0.1
    changed_share: fields.ChangedShare = 0.0
    emit: fields.Emit = True


@dataclass(frozen=True, kw_only=True)
class IngestOptions(RecipeOptions):
    """Tables to bring into the lake."""

    source: fields.IngestedSource = None
    batches: fields.Batches = None
    num_batches: fields.NumBatches = None
    name: fields.DatasetName = None
    batch_size: fields.BatchSize = None


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(StageOptions):
    """The newest placer against rules of thumb and the champion."""

    rivals: version_fields.Rivals = False
    current: fields.CurrentPlan = None


@dataclass(frozen=True, kw_only=True)
class _Contestants:
    versions: version_fields.Versions
    rivals: version_fields.Rivals = False


@dataclass(frozen=True, kw_only=True)
class CompareOptions(TaskOptions, _Contestants):
    """Any versions, rules of thumb and published rivals against each other."""


@dataclass(frozen=True, kw_only=True)
class _Champion:
    version: version_fields.Version = None
    reason: version_fields.Reason = None
    no_promote: fields.NoPromote = False


@dataclass(frozen=True, kw_only=True)
class PromoteOptions(StageOptions, _Champion):
    """The newest placer by its evaluation, or any version by hand."""

    def __post_init__(self) -> None:
        if self.version is None:
            return
        named = VersionReference.of(self.version)
        if self.algorithm not in (None, named.algorithm):
            raise ValueError(
                f"version {self.version} is one of {named.algorithm}, not of {self.algorithm}, so it is not clear which "
                f"version is meant; give {VersionReference(self.algorithm, named.name)} without --algorithm"
            )
        if self.no_promote:
            raise ValueError(
                f"version {self.version} cannot be made champion and left as it is at once; leave out the version to "
                "register the newest placer without promoting it, or leave out --no-promote"
            )


@dataclass(frozen=True, kw_only=True)
class PlaceOptions:
    """Tables to place by hand, and what their plan must respect."""

    tables: place_fields.PlacedTables
    num_devices: place_fields.PlacedDevices
    memory_gb: place_fields.PlacedMemoryGb = None
    hardware: place_fields.HardwareName = None
    placer: place_fields.PlacerName = None
    constraints: place_fields.ConstraintsText = None
    sharding: place_fields.Sharding = None
    reserve_gb: fields.ReserveGb = None
    cache: place_fields.Cache = False
    current: place_fields.PlanInUse = None
    current_tables: place_fields.TablesThen = None
    steps_until_next: place_fields.StepsUntilNext = 100_000
    move_gb_per_s: place_fields.MoveGbPerS = 10
    budget_ms: place_fields.BudgetMs = None


@dataclass(frozen=True, kw_only=True)
class PruneOptions:
    """Files to remove."""

    older_than_days: version_fields.OlderThanDays = 90
    delete: version_fields.Delete = False
