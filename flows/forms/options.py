"""The options of every deployed flow, which its form, the API, its command and direct calls share.

`form.py` makes Prefect flows of them, `flows/cli/options.py` commands, and `configuration.py` a recipe. An option that is
None is left to the recipe.
"""

from dataclasses import dataclass, fields
from typing import Any

from flows.forms.fields import (
    ChangedShare,
    Dataset,
    DatasetName,
    Delete,
    DeviceName,
    Emit,
    Full,
    IngestedSource,
    Iterations,
    MemoryGb,
    NumDevices,
    OlderThanDays,
    Peers,
    PlacementsPerIteration,
    PoolingDrift,
    Reason,
    RecipeName,
    ReuseDrift,
    Seconds,
    Seed,
    Source,
    TablesPerTask,
    TestbedName,
    Version,
    Versions,
)


@dataclass(frozen=True, kw_only=True)
class RecipeOptions:
    """The configuration that all other options override."""

    recipe: RecipeName = "default"


@dataclass(frozen=True, kw_only=True)
class RunOptions(RecipeOptions):
    """What is drawn, and where costs come from."""

    seed: Seed = 0
    testbed: TestbedName = None


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Tables to ingest."""

    source: Source = None


@dataclass(frozen=True, kw_only=True)
class DatasetOptions:
    """Tables that have been ingested."""

    dataset: Dataset = None


@dataclass(frozen=True, kw_only=True)
class TaskSizeOptions:
    """Sizes of the placement tasks."""

    num_devices: NumDevices = None
    memory_gb: MemoryGb = None
    tables_per_task: TablesPerTask = None


# The first base class is the last to add its fields to the form: recipe, seed, testbed, source or dataset, sizes.
@dataclass(frozen=True, kw_only=True)
class RetrainingOptions(TaskSizeOptions, SourceOptions, RunOptions):
    """A retraining: what `watch` asks for and `retrain` takes."""

    def parameters(self) -> dict[str, Any]:
        """These options as parameters of a flow run, without those that a subclass adds."""
        return {field.name: getattr(self, field.name) for field in fields(RetrainingOptions)}


@dataclass(frozen=True, kw_only=True)
class StageOptions(TaskSizeOptions, DatasetOptions, RunOptions):
    """One stage, on tables that have been ingested."""


@dataclass(frozen=True, kw_only=True)
class RetrainOptions(RetrainingOptions):
    """The whole chain."""

    iterations: Iterations = None
    placements_per_iteration: PlacementsPerIteration = None
    full: Full = False


@dataclass(frozen=True, kw_only=True)
class WatchOptions(RetrainingOptions):
    """A look at a source of tables, and what counts as a change."""

    pooling_drift: PoolingDrift = 0.1
    reuse_drift: ReuseDrift = 0.1
    changed_share: ChangedShare = 0.0
    emit: Emit = True


@dataclass(frozen=True, kw_only=True)
class IngestOptions(SourceOptions, RecipeOptions):
    """Tables to bring into the lake."""

    source: IngestedSource = None
    name: DatasetName = None


@dataclass(frozen=True, kw_only=True)
class ProfileOptions(StageOptions):
    """Measurements for the next training iteration, or a collection of shard costs."""

    seconds: Seconds = None
    device: DeviceName = "auto"


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(StageOptions):
    """The newest placer against rules of thumb and the champion."""

    peers: Peers = False


@dataclass(frozen=True, kw_only=True)
class _Contestants:
    versions: Versions
    peers: Peers = False


@dataclass(frozen=True, kw_only=True)
class CompareOptions(StageOptions, _Contestants):
    """Any versions, rules of thumb and published rivals against each other."""


@dataclass(frozen=True, kw_only=True)
class _Champion:
    version: Version = None
    reason: Reason = None


@dataclass(frozen=True, kw_only=True)
class PromoteOptions(StageOptions, _Champion):
    """The newest placer by its evaluation, or any version by hand."""


@dataclass(frozen=True, kw_only=True)
class PruneOptions:
    """Files to remove."""

    older_than_days: OlderThanDays = 90
    delete: Delete = False
